//! `hodo mem calls` on a program whose calls are known.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hodo_tests::{Kind, build, has_tool, hodo};
use serde_json::Value;

use crate::shown::{place, shown};

fn program() -> PathBuf {
    build("calling.c", Kind::Pie, &["-g", "-O2"])
}

fn calls(arguments: &[&str], program: Option<&Path>) -> Output {
    shown("calls", arguments, program)
}

/// What a function or a call has, by its name or names.
fn of(graph: &Value, names: &[&str], key: &str) -> u64 {
    let (list, ends): (_, fn(&Value) -> Vec<&Value>) = match names.len() {
        1 => ("functions", |row| vec![&row["name"]]),
        _ => ("calls", |row| {
            vec![&row["caller"]["name"], &row["callee"]["name"]]
        }),
    };
    let rows = graph[list].as_array().expect("a list").iter();
    let found = rows.filter(|row| ends(row) == names);
    found.map(|row| row[key].as_u64().expect("a number")).sum()
}

fn check(graph: &Value) {
    let calls = |names: &[&str]| of(graph, names, "calls");
    let inclusive = |names: &[&str]| of(graph, names, "inclusive");
    // In recursion, all calls are counted, and the outermost costs what all do.
    assert_eq!(
        calls(&["fib"]),
        calls(&["main", "fib"]) + calls(&["fib", "fib"])
    );
    assert_eq!(calls(&["main", "fib"]), 1);
    assert_eq!(inclusive(&["fib"]), of(graph, &["fib"], "self"));
    assert_eq!(inclusive(&["main", "fib"]), inclusive(&["fib"]));
    assert_eq!(inclusive(&["fib", "fib"]), 0);
    // Of functions that call each other, the outer one includes the other.
    assert_eq!(calls(&["even", "odd"]), 10);
    assert_eq!(calls(&["odd", "even"]), 10);
    assert!(inclusive(&["even"]) > inclusive(&["odd"]));
    assert_eq!(inclusive(&["odd", "even"]), 0);
    // Tail calls are calls of the function that jumps.
    assert_eq!(calls(&["main", "tail"]), 50);
    assert_eq!(calls(&["tail", "last"]), 50);
    assert_eq!(calls(&["last", "work"]), 50);
    assert_eq!(calls(&["main", "last"]), 0);
    let own = |name: &str| of(graph, &[name], "self");
    let costs = inclusive(&["last", "work"]);
    assert_eq!(inclusive(&["last"]), costs + own("last"));
    assert_eq!(inclusive(&["tail"]), costs + own("last") + own("tail"));
    // Calls that are left by a jump end.
    assert_eq!(calls(&["leave"]), 8);
    assert_eq!(calls(&["main", "work"]), 1);
    assert!(inclusive(&["leave"]) < inclusive(&["main", "work"]));
    // A handler is called by nothing.
    assert_eq!(calls(&["handler", "work"]), 1);
    assert_eq!(calls(&["handler"]), 0);
    assert!(inclusive(&["handler"]) > inclusive(&["handler", "work"]));
    // The child is in the calls of its parent.
    assert_eq!(calls(&["main", "in_child"]), 1);
    assert!(inclusive(&["in_child"]) > inclusive(&["in_child", "work"]));
    assert!(inclusive(&["in_child", "work"]) > 10_000);
    let functions = graph["functions"].as_array().expect("a list").iter();
    let all = functions.map(|row| row["self"].as_u64().expect("a number"));
    assert_eq!(Some(all.sum::<u64>()), graph["instructions"].as_u64());
    assert_eq!(calls(&["main"]), 1);
}

#[test]
fn calls_are_followed_in_runs_and_recordings() {
    let program = program();
    let output = calls(&["--format", "json"], Some(&program));
    check(&serde_json::from_slice(&output.stderr).expect("JSON"));
    let directory = place("calling.mem");
    let mut record = Command::new(hodo());
    record.args(["mem", "record", "-d", &directory, "--"]);
    let status = record.arg(&program).status().expect("hodo can be run");
    assert!(status.success());
    let output = calls(&["--format", "json", "-d", &directory], None);
    check(&serde_json::from_slice(&output.stdout).expect("JSON"));
    let output = calls(&["--only", "even", "--only", "odd"], Some(&program));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("even > odd, "), "{text}");
    assert!(!text.contains("main ("), "{text}");
    assert!(!text.contains("main > "), "{text}");
}

#[test]
fn a_thread_is_chosen() {
    let directory = place("threads.mem");
    let mut record = Command::new(hodo());
    record.args(["mem", "record", "-d", &directory, "--"]);
    let status = record.arg(program()).status().expect("hodo can be run");
    assert!(status.success());
    let all = |tool: &str, more: &[&str]| {
        let mut command = Command::new(hodo());
        command.args(["mem", tool, "--format", "json", "-d", &directory]);
        let output = command.args(more).output().expect("hodo can be run");
        let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (value, error)
    };
    let instructions = |more: &[&str]| {
        let (value, _) = all("stat", more);
        let number = |key: &str| value[key].as_u64().expect("a number");
        (number("instructions"), number("threads"))
    };
    let (parent, child) = (
        instructions(&["--thread", "0"]),
        instructions(&["--thread", "1"]),
    );
    assert_eq!((parent.0 + child.0, parent.1 + child.1), instructions(&[]));
    assert!(child.0 > 10_000 && parent.0 > child.0);
    let (graph, _) = all("calls", &["--thread", "1"]);
    assert_eq!(of(&graph, &["in_child", "work"], "calls"), 1);
    assert_eq!(of(&graph, &["fib"], "self"), 0);
    let (_, error) = all("stat", &["--thread", "7"]);
    assert!(error.contains("--thread 7"), "{error}");
}

#[test]
fn callgrind_annotate_reads_the_calls() {
    let file = place("calling.callgrind");
    calls(&["--format", "callgrind", "-o", &file], Some(&program()));
    let text = std::fs::read_to_string(&file).expect("it is written");
    assert!(text.starts_with("# callgrind format\nversion: 1\n"));
    assert!(text.contains("\ncfn=fib\ncalls=1 "), "{text}");
    if !has_tool("callgrind_annotate") {
        return;
    }
    let mut annotate = Command::new("callgrind_annotate");
    annotate.args(["--inclusive=yes", "--tree=calling", "--threshold=100"]);
    let output = annotate.arg(&file).output().expect("it can be run");
    assert!(output.status.success(), "{output:?}");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let tail = |line: &&str| line.contains("calling.c:tail (50x)");
    assert!(shown.lines().any(|line| tail(&line)), "{shown}");
}
