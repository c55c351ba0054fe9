//! The call tree where functions are left by longjmp, exceptions, panics and thread exits, compared with the tree that
//! the program keeps itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use hodo_tests::{Run, Trace, build_with, has_tool, needs};

/// Functions that leave others; nothing that comes after them is inside them.
const LEAVING: [&str; 4] = ["longjmp", "siglongjmp", "__longjmp_chk", "__cxa_throw"];

/// The depth and name of each call of the program's own functions.
fn seen(trace: &Trace) -> Vec<String> {
    let replay = trace.view("replay", &["-f", "none", "--no-merge"]);
    let mut open: Vec<&str> = Vec::new();
    let mut seen = Vec::new();
    for line in replay.lines() {
        let text = line.trim_start();
        open.truncate((line.len() - text.len()) / 2);
        let name = text.split('(').next().unwrap_or_default();
        if name.starts_with("t_") {
            let own = open.iter().filter(|name| name.starts_with("t_")).count();
            seen.push(format!("{own} {name}"));
        }
        if name.starts_with("t_") || name.contains("setjmp") {
            let leaving = open.iter().find(|name| LEAVING.contains(name));
            assert_eq!(leaving, None, "{name} is inside of it:\n{replay}");
        }
        open.push(name);
    }
    seen
}

/// Programs made from one file at each of these optimization levels. All are built before one is run:
/// `HODO_TEST_BUILDS` stops there.
fn at_levels<const N: usize>(
    levels: [&'static str; N],
    build: impl Fn(&str) -> PathBuf,
) -> [(&'static str, PathBuf); N] {
    levels.map(|level| (level, build(level)))
}

fn check(name: &str, program: &Path, args: &[&str], options: &[&str]) {
    let alone = Command::new(program).args(args).output();
    let tree = String::from_utf8(alone.expect("the program runs").stdout).expect("text");
    let tree: Vec<&str> = tree.lines().collect();
    let trace = Run::new(name, program).args(args).same(options);
    assert!(tree.len() > 70, "{tree:?}");
    assert_eq!(seen(&trace), tree, "{name} {options:?}");
}

#[test]
fn jumps_leave_the_frames_they_skip() {
    let build = |level: &str| build_with("gcc", &["left.c"], &[level, "-w"]);
    for (level, program) in at_levels(["-O0", "-O1", "-O2", "-O3"], build) {
        check(&format!("left{level}"), &program, &[], &[]);
    }
}

#[test]
fn exceptions_leave_the_frames_they_skip() {
    needs!(has_tool("g++"), "there is no g++");
    let build = |level: &str| build_with("g++", &["left.cc"], &[level, "-w"]);
    for (level, program) in at_levels(["-O0", "-O1", "-O2", "-O3"], build) {
        check(&format!("exceptions{level}"), &program, &[], &[]);
    }
}

#[test]
fn panics_leave_the_frames_they_skip() {
    let build = |level: &str| build_with("rustc", &["left.rs"], &["--edition=2024", level]);
    for (level, program) in at_levels(["-Copt-level=0", "-Copt-level=3"], build) {
        check(&format!("panics{level}"), &program, &[], &[]);
    }
}

#[test]
fn random_jumps_and_exceptions_leave_the_frames_they_skip() {
    needs!(has_tool("g++"), "there is no g++");
    let program = build_with("g++", &["left_random.cc"], &["-O2", "-w"]);
    check("left_random", &program, &["1"], &[]);
    // Without a name, it is not known which function has jumped.
    check("left_unnamed", &program, &["2"], &["--no-libcall"]);
    check("left_untimed", &program, &["3"], &["--no-time"]);
}

#[test]
fn frames_end_with_their_thread() {
    let program = build_with("gcc", &["left_thread.c"], &["-O1", "-pthread"]);
    let trace = Run::new("left_thread", &program).same(&[]);
    let replay = trace.view("replay", &["--no-merge"]);
    for name in ["t_ends", "t_thread"] {
        let ends = replay.matches(&format!("}} /* {name}, unwound */")).count();
        assert_eq!(ends, 3, "{replay}");
    }
    assert!(!replay.contains("remaining functions"), "{replay}");
}
