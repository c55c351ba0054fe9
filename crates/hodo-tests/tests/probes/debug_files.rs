//! Names, variables and lines that are not in the program itself: its separate files, and how C++ names are written.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hodo_tests::probing::{path, text};
use hodo_tests::{has_tool, hodo, needs, scratch};

const PROGRAM: &str = r#"
#include <stdio.h>
static __attribute__((noipa)) int inner(int depth, const char *tag) { return depth * 2 + !tag; }
static __attribute__((noipa)) int outer(int n) {
    int s = 0;
    for (int i = 0; i < n; i++) s += inner(i, "tag");
    return s;
}
int main(void) { printf("%d\n", outer(3)); return 0; }
"#;

fn done(place: &Path, words: &[&str]) -> Output {
    let output = Command::new(words[0])
        .args(&words[1..])
        .current_dir(place)
        .output();
    let output = output.expect("it can be run");
    assert!(output.status.success(), "{words:?}: {output:?}");
    output
}

/// A directory with the source of the program.
fn place(test: &str) -> PathBuf {
    let place = scratch(test);
    fs::write(place.join("prog.c"), PROGRAM).expect("a source");
    place
}

fn hodo_in(place: &Path, options: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-s", "KILL", "300"])
        .arg(hodo())
        .args(options)
        .envs([("LC_ALL", "C")])
        .env("DEBUGINFOD_CACHE_PATH", place.join("cache"))
        .current_dir(place)
        .output()
        .expect("hodo can be run")
}

/// The probe on `inner` shows its parameters.
#[track_caller]
fn sees_parameters(place: &Path) {
    let output = hodo_in(
        place,
        &[
            "probe",
            "-e",
            "p prog:inner depth tag:string",
            "--",
            "./prog",
        ],
    );
    let said = text(&output.stdout);
    for depth in 0..3 {
        let hit = format!("inner: (inner+0x0) depth={depth} tag=\"tag\"");
        assert!(said.contains(&hit), "{output:?}");
    }
}

#[track_caller]
fn has_names(place: &Path, expected: bool) {
    let output = hodo_in(place, &["live", "-f", "none", "--no-libcall", "./prog"]);
    let said = text(&output.stdout);
    assert_eq!(said.matches("inner()").count() == 3, expected, "{output:?}");
    assert_eq!(said.contains("outer()"), expected, "{output:?}");
}

#[test]
fn symbols_of_stripped_programs_are_in_separate_files() {
    let place = place("symbols_of_stripped_programs_are_in_separate_files");
    let separate = |options: &[&str]| {
        let compile = ["gcc", "-O1", "-g", "-o", "prog", "prog.c"];
        done(&place, &[&compile, options].concat());
        done(
            &place,
            &["objcopy", "--only-keep-debug", "prog", "prog.debug"],
        );
        done(&place, &["strip", "--strip-all", "prog"]);
    };
    let link = || {
        done(
            &place,
            &["objcopy", "--add-gnu-debuglink=prog.debug", "prog"],
        )
    };
    separate(&["-Wl,--build-id"]);
    link();
    sees_parameters(&place);
    has_names(&place, true);
    // `hodo info` says where they are from.
    let output = hodo_in(&place, &["record", "./prog"]);
    assert!(output.status.success(), "{output:?}");
    let info = hodo_in(&place, &["info"]);
    let from = format!("prog from {}", path(&place.join("prog.debug")));
    assert!(text(&info.stdout).contains(&from), "{info:?}");
    let planned = hodo_in(&place, &["plan", "-v", "prog"]);
    assert!(text(&planned.stdout).contains("inner"), "{planned:?}");
    // In the subdirectory for them. The cached plan does not keep names that are gone.
    let (beside, below) = (place.join("prog.debug"), place.join(".debug"));
    fs::create_dir_all(&below).expect("a directory");
    fs::rename(&beside, below.join("prog.debug")).expect("the file is moved");
    has_names(&place, true);
    fs::remove_dir_all(&below).expect("the directory can be removed");
    has_names(&place, false);
    // By build id, where debuginfod's client stores what it has downloaded.
    separate(&["-Wl,--build-id=0xabcdef0123456789"]);
    let cached = place.join("cache/abcdef0123456789");
    fs::create_dir_all(&cached).expect("a directory");
    fs::rename(&beside, cached.join("debuginfo")).expect("the file is moved");
    sees_parameters(&place);
    has_names(&place, true);
    // Without build ids, the checksum decides.
    separate(&["-Wl,--build-id=none"]);
    link();
    sees_parameters(&place);
    has_names(&place, true);
    done(
        &place,
        &[
            "gcc",
            "-O1",
            "-g",
            "-Wl,--build-id=none",
            "-DOTHER",
            "-o",
            "prog.debug",
            "prog.c",
        ],
    );
    has_names(&place, false);
    fs::remove_dir_all(place).expect("the files can be removed");
}

#[test]
fn debugging_information_may_be_split_off() {
    let place = place("debugging_information_may_be_split_off");
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let split = ["-O1", "-g", version, "-gsplit-dwarf", "prog.c"];
        done(
            &place,
            &[&["gcc", "-c", "-o", "prog.o"][..], &split].concat(),
        );
        done(&place, &["gcc", "-o", "prog", "prog.o"]);
        sees_parameters(&place);
        let output = hodo_in(&place, &["probe", "-e", "p prog:prog.c:3", "--", "./prog"]);
        assert_eq!(
            text(&output.stdout).matches("inner+0x").count(),
            3,
            "{output:?}"
        );
        // All in one file. Some versions of the tools that make it fail.
        let pack = ["10", "llvm-dwp", "-e", "prog", "-o", "prog.dwp"];
        let packed = Command::new("timeout")
            .args(pack)
            .current_dir(&place)
            .output();
        if packed.is_ok_and(|output| output.status.success()) {
            fs::remove_file(place.join("prog.dwo")).expect("there is one");
            sees_parameters(&place);
            fs::remove_file(place.join("prog.dwp")).expect("there is one");
        }
    }
    fs::remove_dir_all(place).expect("the files can be removed");
}

#[test]
fn instances_overloads_and_labels_have_names() {
    needs!(has_tool("g++"), "a compiler for C++ is needed");
    let place = scratch("instances_overloads_and_labels_have_names");
    let source = r#"
        #include <string>
        namespace shop {
        template <typename T> __attribute__((noipa)) T twice(T x) { return x + x; }
        __attribute__((noipa)) int add(int a) { return a + 1; }
        __attribute__((noipa)) int add(int a, int b) { return a + b; }
        }
        asm(".text\n.globl outside\n.type outside, @function\noutside: mov $1, %eax\n.globl o_mid\n"
            "o_mid: add $2, %eax\n nop\n ret\n.size outside, . - outside\n");
        extern "C" int outside();
        int main() { return shop::twice(4) + (int)shop::twice(2.5) + shop::add(1) + shop::add(2, 3) + outside() - 23; }
    "#;
    fs::write(place.join("cpp.cc"), source).expect("a source");
    done(&place, &["g++", "-O1", "-g", "-o", "cpp", "cpp.cc"]);
    for (probe, expected) in [
        ("p cpp:shop::twice<int> x", "x=4"),
        ("p cpp:shop::twice<int>(int) x", "x=4"),
        ("p cpp:'int shop::twice<int>(int)' x", "x=4"),
        ("p cpp:'shop::add(int, int)' a b", "a=2 b=3"),
        ("p cpp:shop::add(int,int) a b", "a=2 b=3"),
        ("p cpp:shop::add(int) a", "a=1"),
        ("p:at cpp:o_mid", "at: (o_mid+0x0)"),
    ] {
        let output = hodo_in(&place, &["probe", "-e", probe, "--", "./cpp"]);
        let hits: Vec<&str> = text(&output.stdout).lines().collect();
        assert_eq!(hits.len(), 1, "{probe}: {output:?}");
        assert!(hits[0].contains(expected), "{probe}: {output:?}");
    }
    // A name without arguments means all.
    let output = hodo_in(&place, &["probe", "-e", "p cpp:shop::twice", "--", "./cpp"]);
    assert_eq!(text(&output.stdout).lines().count(), 2, "{output:?}");
    let listed = hodo_in(&place, &["probe", "--list", "cpp", "shop::*"]);
    for name in [
        "shop::twice<int>(int)",
        "shop::twice<double>(double)",
        "shop::add(int, int)",
    ] {
        assert!(text(&listed.stdout).contains(name), "{listed:?}");
    }
    fs::remove_dir_all(place).expect("the files can be removed");
}
