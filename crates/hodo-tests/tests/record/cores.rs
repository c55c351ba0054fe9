//! Programs that leave core files.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use hodo_tests::{Kind, build, hodo, scratch, skip};

/// Functions of `cores.cc`; what they call may differ from run to run.
const OWN: [&str; 6] = ["crashes", "deep", "waits", "spins", "overflows", "main"];

/// Runs a command in this directory, with core files of any size.
fn run(place: &Path, words: &[&str]) -> ExitStatus {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh"]);
    command.args(words).current_dir(place);
    command.status().expect("a shell can be run")
}

/// How the core files there begin: with the process they come from, and its mapped files.
fn cores(place: &Path) -> Vec<Vec<u8>> {
    let files = fs::read_dir(place).expect("the directory can be read");
    let files = files.map(|file| file.expect("an entry").path());
    let head = |path: PathBuf| {
        let mut head = Vec::new();
        let file = fs::File::open(path).expect("a core file");
        file.take(1 << 16).read_to_end(&mut head).expect("a file");
        head
    };
    let is_core = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(b"core")
    };
    files.filter(is_core).map(head).collect()
}

/// Returns whether core files are written to the working directory; if not, reports it.
fn are_here() -> bool {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let here = !pattern.contains('/') && !pattern.starts_with('|');
    if !here {
        skip("core files do not come to the working directory");
    }
    here
}

#[test]
fn the_wait_status_says_that_there_is_a_core_file() {
    if !are_here() {
        return;
    }
    let program = build("ends.c", Kind::Pie, &[]);
    let program = program.to_str().expect("text");
    let alone = run(&scratch("core-alone"), &[program, "fault"]);
    if !alone.core_dumped() {
        return skip("a program that crashes leaves no core file");
    }
    let place = scratch("core-traced");
    let hodo = hodo().to_str().expect("text");
    let record = [hodo, "record", "-d", "data", "--", program, "fault"];
    assert_eq!(run(&place, &record), alone);
    // It is the program's core, not hodo's.
    let cores = cores(&place);
    assert_eq!(cores.len(), 1);
    let has = |word: &str| {
        cores[0]
            .windows(word.len())
            .any(|part| part == word.as_bytes())
    };
    assert!(has(program) && !has(hodo), "it is not the program's");
}

/// The functions on the stacks of all threads in the core file, from the program's own outward, as gdb finds them.
fn stacks(place: &Path, program: &str) -> Vec<Vec<String>> {
    let files = fs::read_dir(place).expect("the directory can be read");
    let mut files = files.map(|file| file.expect("an entry").path());
    let core = files
        .find(|path| {
            let name = path.file_name().unwrap_or_default();
            name.as_encoded_bytes().starts_with(b"core")
        })
        .expect("a core file");
    let mut gdb = Command::new("gdb");
    // Only what is asked for, and no access to debuginfod servers.
    gdb.args(["-nx", "-batch", "-iex", "set debuginfod enabled off"]);
    gdb.args(["-ex", "thread apply all bt", program]).arg(core);
    let out = gdb.output().expect("gdb can be run").stdout;
    let out = String::from_utf8_lossy(&out).into_owned();
    let mut stacks = Vec::new();
    for line in out.lines() {
        if line.starts_with("Thread ") {
            stacks.push(Vec::new());
        }
        let (Some(stack), Some(frame)) = (stacks.last_mut(), line.strip_prefix('#')) else {
            continue;
        };
        // `#1  0x0000 in name (arguments) …` or `#0  name (arguments) …`
        let words: Vec<&str> = frame.split_whitespace().collect();
        let name = match words.as_slice() {
            [_, _, "in", name, ..] | [_, name, ..] => *name,
            _ => "",
        };
        if !stack.is_empty() || OWN.contains(&name) {
            stack.push(name.to_owned());
        }
    }
    stacks.sort();
    stacks
}

#[test]
fn debuggers_find_all_frames_in_a_core_file() {
    if !are_here() {
        return;
    }
    if Command::new("gdb").arg("--version").output().is_err() {
        return skip("there is no gdb");
    }
    let program = build("cores.cc", Kind::Pie, &["-pthread", "-g"]);
    let program = program.to_str().expect("text");
    let hodo = hodo().to_str().expect("text");
    for how in ["fault", "abort", "throw", "quit", "overflow"] {
        let place = scratch("stacks-alone");
        let alone = run(&place, &[program, how]);
        if !alone.core_dumped() {
            return skip("a program that crashes leaves no core file");
        }
        let expected = stacks(&place, program);
        let has = |name: &str| expected.iter().flatten().filter(|f| *f == name).count();
        assert_eq!((has("deep"), has("waits"), has("spins")), (6, 5, 4));
        for options in [
            &["record", "-d", "data"][..],
            &["probe", "-e", "cores:deep%return count"],
        ] {
            let place = scratch("stacks-traced");
            let words = [&[hodo], options, &["--", program, how]].concat();
            assert_eq!(run(&place, &words), alone, "{how} {options:?}");
            assert_eq!(stacks(&place, program), expected, "{how} {options:?}");
        }
    }
}
