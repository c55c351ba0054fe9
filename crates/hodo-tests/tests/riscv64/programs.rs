//! Programs that must do under `hodo record` what they do alone, in a real Linux for RISC-V: some of Debian's, and some
//! of our own that once failed. One run of `scripts/linux.sh riscv64` does them all, because a virtual machine takes
//! long to start.
//!
//! `HODO_RISCV64` is the path of a `hodo` for RISC-V; it is empty if `scripts/cross.sh` runs this in addition. With
//! `HODO_RISCV64_OPTIMIZED`, for one that is built with optimizations, large programs and the insides of libraries are
//! recorded, too: without optimizations, reading their code takes minutes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use hodo_tests::{has_tool, skip};

/// A name, a command, and the options to record it with, one run for each.
type Case = (&'static str, &'static str, &'static [&'static str]);

/// What always runs.
const SMALL: [Case; 7] = [
    ("slots", "$programs/filters", &[""]),
    ("small_frames", "$programs/small_frames", &[""]),
    ("recursion", "$programs/recursion", &[""]),
    ("beside", "$programs/beside process", &[""]),
    ("beside-thread", "$programs/beside thread", &[""]),
    (
        "lua",
        "lua5.4 -e 'local function f(n) return n < 2 and n or f(n - 1) + f(n - 2) end print(f(10), pcall(error, 1)) error(\"end\")'",
        &[""],
    ),
    (
        "calls",
        "sh -c '\"$0\" report --no-pager -d slots-0.data; \"$0\" report --no-pager -d recursion-0.data; \"$0\" report --no-pager -d beside-0.data' $hodo",
        &[],
    ),
];

/// What runs with an optimized hodo.
const LARGE: [Case; 5] = [
    (
        "bash",
        "bash -c 'f() { (($1 < 2)) && echo $1 || echo $(($(f $(($1 - 1))) + 1)); }; f 3; echo a | cat; (exit 5); echo $?; exit 3'",
        &[""],
    ),
    (
        "sqlite3",
        "sqlite3 :memory: 'create table t(a); insert into t values (1), (2); select sum(a) from t; select b from t'",
        &[""],
    ),
    (
        "perl",
        "perl -e 'print join(\",\", map { $_ * 2 } 1 .. 9), `echo child`; eval { die { n => 7 } }; exit $@->{n}'",
        &[""],
    ),
    ("small_frames-libraries", "$programs/small_frames", &["-l"]),
    (
        "lua-libraries",
        "lua5.4 -e 'print(pcall(error, 1)) error(\"end\")'",
        &["-l"],
    ),
];

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn build(place: &Path, compiler: &str, sources: &[&str], flags: &[&str]) {
    let name = sources[0].split('.').next().unwrap_or_default();
    let sources = sources.iter().map(|source| {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("programs")
            .join(source)
    });
    let output = Command::new(compiler)
        .args(["-O2", "-w", "-pthread"])
        .args(flags)
        .args(sources)
        .arg("-o")
        .arg(place.join(name))
        .output()
        .expect("a compiler that can be run");
    assert!(output.status.success(), "{output:?}");
}

/// What runs in the virtual machine: each program's output, error output and status go to files.
fn script(place: &Path, hodo: &str, cases: &[Case]) -> String {
    let mut text = format!(
        "export LC_ALL=C PERL_HASH_SEED=0 hodo={hodo} programs={0}; cd {0} || exit 1\n",
        place.display()
    );
    for (name, command, options) in cases {
        text += &format!("{command} >{name}.out 2>{name}.err </dev/null; echo $? >{name}.status\n");
        for (n, option) in options.iter().enumerate() {
            let to = format!("{name}-{n}");
            text += &format!(
                "timeout 300 $hodo record {option} -d {to}.data -- {command} >{to}.out 2>{to}.all </dev/null; echo $? >{to}.status\n\
                 grep -v '^hodo: ' {to}.all >{to}.err; grep '^hodo: ' {to}.all >{to}.said\n",
            );
        }
    }
    // The last of these commands may have found nothing.
    text + "true\n"
}

#[test]
fn programs_do_what_they_do_alone() {
    let Some(hodo) = std::env::var_os("HODO_RISCV64") else {
        return skip(
            "HODO_RISCV64 does not name a hodo for RISC-V: scripts/cross.sh machine runs this",
        );
    };
    if hodo.is_empty() {
        return;
    }
    let (c, cpp) = ("riscv64-linux-gnu-gcc", "riscv64-linux-gnu-g++");
    if let Some(missing) = [c, cpp].into_iter().find(|tool| !has_tool(tool)) {
        return skip(&format!("{missing} is not installed"));
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("riscv64-programs");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).expect("a directory for tests");
    let place = place.canonicalize().expect("its path");
    // The virtual machine has a libstdc++, but perhaps another version.
    build(&place, cpp, &["small_frames.cc"], &["-static-libstdc++"]);
    build(&place, c, &["recursion.c", "recursion.S"], &[]);
    build(&place, c, &["beside.c"], &[]);
    // It calls libraries without the procedure linkage table.
    build(&place, c, &["filters.c"], &["-mno-plt"]);
    let hodo = hodo.to_str().expect("a path that is text");
    let mut cases = SMALL.to_vec();
    let optimized = std::env::var_os("HODO_RISCV64_OPTIMIZED").is_some();
    if optimized {
        cases.extend(LARGE);
    }
    fs::write(place.join("all.sh"), script(&place, hodo, &cases)).expect("a file");
    let output = Command::new(tree().join("scripts/linux.sh"))
        .args(["riscv64", "run", "bash"])
        .arg(place.join("all.sh"))
        .output()
        .expect("a machine");
    assert!(output.status.success(), "{output:?}");

    let read = |name: String| {
        let bytes = fs::read(place.join(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        String::from_utf8_lossy(&bytes).into_owned()
    };
    for (name, _, options) in cases {
        for (n, option) in options.iter().enumerate() {
            for what in ["out", "err", "status"] {
                let alone = read(format!("{name}.{what}"));
                let recorded = read(format!("{name}-{n}.{what}"));
                assert_eq!(alone, recorded, "{name}, record {option}: {what}");
            }
            let said = read(format!("{name}-{n}.said"));
            let shares = said.contains("calls of both are not recorded while it runs");
            assert_eq!(shares, name.starts_with("beside"), "{name}: {said}");
            assert!(shares || said.is_empty(), "{name}: {said}");
        }
    }
    assert_eq!(read("lua.status".to_owned()), "1\n");
    let calls = read("calls.out".to_owned());
    let count = |function: &str| -> Option<u64> {
        let is_of = |line: &&str| line.split_whitespace().last() == Some(function);
        let line = calls.lines().find(is_of)?;
        line.split_whitespace().rev().nth(1)?.parse().ok()
    };
    for (name, times) in [("slow", 10), ("nanosleep", 10), ("printf", 1)] {
        assert_eq!(count(name), Some(times), "{name}: {calls}");
    }
    assert_eq!(count("early"), Some(101), "{calls}");
    assert_eq!(count("before"), Some(10), "{calls}");
    assert_eq!(count("after"), Some(30), "{calls}");
    assert_eq!(count("in_child"), None, "{calls}");
}
