//! `hodo mem heap` on a program whose allocations are known.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hodo_tests::{Kind, build, hodo};
use serde_json::{Value, json};

use crate::shown::{place, shown};

fn program() -> PathBuf {
    build("allocating.c", Kind::Pie, &["-g", "-O1"])
}

fn heap(arguments: &[&str], program: Option<&Path>) -> Output {
    shown("heap", arguments, program)
}

/// What calls have allocated, by the innermost functions.
fn stack<'v>(value: &'v Value, calls: &[&str]) -> &'v Value {
    let mut stacks = value["stacks"].as_array().expect("a list").iter();
    let found = stacks.find(|stack| {
        let names = stack["calls"].as_array().expect("a list").iter();
        names
            .map(|call| &call["function"])
            .take(calls.len())
            .eq(calls)
    });
    found.unwrap_or_else(|| panic!("nothing is allocated by {calls:?}"))
}

fn check(value: &Value) {
    let amount = |allocations: u64, bytes: u64| json!({"allocations": allocations, "bytes": bytes});
    let kept = stack(value, &["make", "kept", "main"]);
    assert_eq!(kept["peak"], amount(1, 3_000_000));
    assert_eq!(kept["leaked"], amount(1, 3_000_000));
    let freed = stack(value, &["make", "freed", "main"]);
    assert_eq!(freed["peak"], amount(1, 5_000_000));
    assert_eq!(freed["leaked"], amount(0, 0));
    assert_eq!(freed["temporary"], 1);
    let temporary = stack(value, &["make", "temporary", "main"]);
    assert_eq!(temporary["all"], amount(100, 100_000));
    assert_eq!(temporary["peak"], amount(0, 0));
    assert_eq!(temporary["temporary"], 100);
    // What was allocated, and then moved by `realloc`, is freed in the end.
    let grown = value["stacks"].as_array().expect("a list").iter();
    let grown = grown.filter(|stack| stack["calls"][0]["function"] == "grown");
    let bytes = grown.map(|stack| stack["all"]["bytes"].as_u64().expect("a number"));
    assert_eq!(bytes.sum::<u64>(), 700_010);
    assert_eq!(value["peak"]["bytes"], 8_000_000);
    assert_eq!(value["leaked"], amount(1, 3_000_000));
}

#[test]
fn peaks_and_leaks_are_found_in_runs_and_recordings() {
    let program = program();
    let all = ["--by", "bytes", "--callers", "3", "--format", "json"];
    let output = heap(&all, Some(&program));
    check(&serde_json::from_slice(&output.stderr).expect("JSON"));
    let directory = place("allocating.mem");
    let mut record = Command::new(hodo());
    record.args(["mem", "record", "-d", &directory, "--"]);
    let status = record.arg(&program).status().expect("hodo can be run");
    assert!(status.success());
    let mut arguments = all.to_vec();
    arguments.extend(["-d", &directory]);
    let output = heap(&arguments, None);
    check(&serde_json::from_slice(&output.stdout).expect("JSON"));
}

#[test]
fn allocations_are_shown_and_drawn() {
    let graph = place("allocating.folded");
    let arguments = ["--by", "leaked", "--flame-graph", &graph];
    let output = heap(&arguments, Some(&program()));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("3000000 bytes in 1 allocations were never freed"),
        "{text}"
    );
    assert!(
        text.contains("make, ") && text.contains(" < kept < main"),
        "{text}"
    );
    let folded = std::fs::read_to_string(&graph).expect("it is written");
    assert!(folded.ends_with("main;kept;make 3000000\n"), "{folded}");
    // The child frees what its parent has allocated.
    let output = heap(&["--thread", "1"], Some(&program()));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains(" 0 bytes in 0 allocations in all"), "{text}");
    let output = heap(&["--only", "grown"], Some(&program()));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("700010 bytes in 2 allocations in all"),
        "{text}"
    );
    assert!(!text.contains("kept"), "{text}");
}
