//! Programs mark which parts of their runs are observed (`hodo mem … --marked`).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use hodo_tests::probing::{path, text};
use hodo_tests::{Kind, build, example, hodo, scratch};
use serde_json::Value;

/// The instructions of a loop in `marked.c`.
const LOOP: u64 = 2_000_000;

fn run(arguments: &[&str], program: &Path, words: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-s", "KILL", "300"])
        .arg(hodo())
        .arg("mem")
        .args(arguments)
        .arg("--marked")
        .arg("--")
        .arg(program)
        .args(words)
        .output()
        .expect("hodo can be run")
}

/// What was counted in the parts of `marked.c`, which is to print this besides its last line.
fn counted(program: &Path, words: &[&str], printed: &str) -> (u64, u64) {
    let output = run(&["stat", "--format", "json"], program, words);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(
        text(&output.stdout),
        format!("{printed}done\n"),
        "{output:?}"
    );
    numbers(&output.stderr)
}

fn numbers(result: &[u8]) -> (u64, u64) {
    let value: Value = serde_json::from_slice(result).expect("JSON");
    let number = |key: &str| value[key].as_u64().expect("a number");
    (number("instructions"), number("threads"))
}

#[track_caller]
fn about(instructions: u64, loops: u64, more: u64) {
    let least = loops * LOOP;
    assert!(
        (least..least + more).contains(&instructions),
        "{instructions}, not {least}"
    );
}

#[test]
fn parts_are_exact() {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_available()) {
        let program = build("marked.c", kind, &[]);
        let (one, threads) = counted(&program, &["parts", "1"], "");
        // The loop, and what its counter begins with.
        assert!((2001..2010).contains(&one), "{kind:?}: {one}");
        assert_eq!(threads, 1);
        assert_eq!(counted(&program, &["parts", "7"], ""), (7 * one, 7));
        about(counted(&program, &["nested"], "").0, 4, 60);
    }
}

/// It has another number in each part, but shares nothing with itself.
#[test]
fn a_thread_of_several_parts_is_one() {
    let program = build("marked.c", Kind::Pie, &[]);
    let result = |tool: &[&str]| -> Value {
        let arguments = [tool, &["--format", "json"]].concat();
        let output = run(&arguments, &program, &["parts", "8", "1000"]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        serde_json::from_slice(&output.stderr).expect("JSON")
    };
    let shared = result(&["share"]);
    assert_eq!(shared["lines"], Value::Array(Vec::new()), "{shared}");
    let cache = result(&["cache", "--cores", "4"]);
    assert_eq!(
        cache["threads"].as_array().map(Vec::len),
        Some(8),
        "{cache}"
    );
    for key in ["invalidations", "true_sharing_misses", "transfers"] {
        assert_eq!(cache["coherence"][key], 0, "{cache}");
    }
}

#[test]
fn a_thousand_parts_of_a_program_without_symbols() {
    let program = build("marked.c", Kind::Pie, &["-s"]);
    let (one, _) = counted(&program, &["parts", "1"], "");
    assert_eq!(
        counted(&program, &["parts", "1000"], ""),
        (1000 * one, 1000)
    );
}

#[test]
fn compilers_and_languages() {
    let (one, _) = counted(&build("marked.c", Kind::Pie, &["-O0"]), &["parts", "1"], "");
    assert!((2001..2050).contains(&one), "{one}");
    let kept = ["-ffunction-sections", "-Wl,--gc-sections"];
    let (one, _) = counted(&build("marked.c", Kind::Pie, &kept), &["parts", "1"], "");
    assert!((2001..2010).contains(&one), "{one}");
    let sorts = |count: &str| {
        let program = example("hodo-mem-marks", "marked");
        let output = run(&["stat", "--format", "json"], &program, &[count]);
        assert_eq!(text(&output.stdout), "true true\n", "{output:?}");
        numbers(&output.stderr).0
    };
    // Before the part, a million numbers are sorted.
    let (few, more) = (sorts("10"), sorts("1000"));
    assert!(few > 10 && few < 5_000, "{few}");
    assert!(more > 5_000 && more < 1_000_000, "{more}");
}

/// All threads of the process are observed in a part, and only then.
#[test]
fn threads_of_the_process() {
    let program = build("marked.c", Kind::Pie, &[]);
    let (instructions, threads) = counted(&program, &["threads"], "");
    about(instructions, 2, 100_000);
    assert_eq!(threads, 3);
    // Starts of different threads are nested.
    let (instructions, _) = counted(&program, &["together", "100"], "");
    assert!(instructions > 200 * 4000, "{instructions}");
    let output = run(&["hot"], &program, &["together", "30"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

/// Children and programs that a process makes in a part are in it.
#[test]
fn children_of_a_part() {
    let program = build("marked.c", Kind::Pie, &[]);
    let (instructions, threads) = counted(&program, &["forks"], "done\n5 4 3\n");
    // That of the child, which ends the part for itself, and that of the program that is executed.
    about(instructions, 2, 400_000);
    assert!(threads >= 3, "{threads}");
    // It ends in a part.
    about(counted(&program, &["open"], "").0, 1, 20_000);
}

#[test]
fn signals_between_parts() {
    let program = build("marked.c", Kind::Pie, &[]);
    for tool in ["stat", "record", "opcodes"] {
        let place = scratch("signals_between_parts");
        let directory = place.join("data");
        let mut arguments = vec![tool];
        if tool == "record" {
            arguments.extend(["-d", path(&directory)]);
        }
        let output = run(&arguments, &program, &["signals", "60"]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(text(&output.stdout), "signals came\ndone\n", "{output:?}");
    }
}

#[test]
fn markers_of_a_library() {
    let library = build("marked_library.c", Kind::Pie, &["-shared", "-fPIC"]);
    let program = build("marked.c", Kind::Pie, &[]);
    let (instructions, threads) = counted(&program, &["library", path(&library)], "");
    about(instructions, 3, 100);
    assert_eq!(threads, 3);
}

/// A process that runs already.
#[test]
fn hodo_attaches_before_the_parts() {
    let mut program = Command::new(build("marked.c", Kind::Pie, &[]))
        .args(["wait", "20"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be run");
    let mut lines = BufReader::new(program.stdout.take().expect("its output")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    assert_eq!(line(), "ready");
    let pid = program.id().to_string();
    let hodo = Command::new(hodo())
        .args(["mem", "stat", "--format", "json", "--marked", "-p", &pid])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("hodo can be run");
    let status = format!("/proc/{pid}/status");
    while !std::fs::read_to_string(&status).is_ok_and(|status| !status.contains("TracerPid:\t0\n"))
    {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    let mut input = program.stdin.take().expect("its input");
    input.write_all(b"\n").expect("it reads");
    assert_eq!(line(), "done");
    assert_eq!(program.wait().expect("its end").code(), Some(3));
    let output = hodo.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let (instructions, threads) = numbers(&output.stdout);
    assert_eq!(
        (instructions / 20 / 1000, instructions % 20, threads),
        (2, 0, 20)
    );
}

#[test]
fn parts_that_do_not_begin() {
    let program = build("marked.c", Kind::Pie, &[]);
    let nothing = "has not called hodo_mem_start()";
    let none = "has markers";
    for (tool, program, words, why, prints) in [
        ("stat", &*program, &["stop"][..], nothing, "done\n"),
        ("none", &program, &["unmarked"], nothing, "done\n"),
        ("hot", Path::new("/bin/echo"), &["a"], none, "a\n"),
    ] {
        let output = run(&[tool], program, words);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert_eq!(text(&output.stdout), prints, "{output:?}");
        let error = text(&output.stderr);
        assert!(
            error.starts_with("hodo: nothing was observed") && error.contains(why),
            "{output:?}"
        );
    }
    let output = run(&["none"], &program, &["parts", "3"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[test]
fn options_that_clash() {
    for arguments in [
        &["--from", "1", "--", "true"][..],
        &["--for", "1", "--", "true"],
        &["--every", "1", "--for", "1", "--", "true"],
        &["-d", "none"],
    ] {
        let output = Command::new(hodo())
            .args(["mem", "stat", "--marked"])
            .args(arguments)
            .output()
            .expect("hodo can be run");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("--marked"), "{output:?}");
    }
}
