//! What `hodo probe` tells of programs: where probes would be, what could be probed.

use std::path::Path;
use std::process::{Command, Output};

use hodo_tests::{Kind, build, hodo};
use serde_json::Value;

/// Runs `hodo probe`.
fn probe(words: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-s", "KILL", "120"])
        .arg(hodo())
        .arg("probe")
        .args(words)
        .env("LC_ALL", "C")
        .output()
        .expect("hodo can be run")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

fn path(program: &Path) -> &str {
    program.to_str().expect("a path of text")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// The address of a symbol, as binutils tell it.
fn address(program: &Path, name: &str) -> u64 {
    let output = Command::new("nm").arg(program).output().expect("nm");
    let lines = text(&output.stdout).lines();
    let line = lines.filter_map(|line| line.split_once(' '));
    let addr = line.filter(|(_, rest)| rest.split(' ').nth(1) == Some(name));
    let mut addr = addr.map(|(addr, _)| u64::from_str_radix(addr, 16));
    addr.next_back().expect("the symbol").expect("an address")
}

#[test]
fn a_dry_run_tells_what_would_be_changed() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    let definition = format!("{file}:work");
    let output = probe(&["--dry-run", "--json", "-e", &definition]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let all = json(&output);
    let place = &all[0]["places"][0];
    assert_eq!(
        (&place["symbol"], &place["offset"]),
        (&"work".into(), &0.into())
    );
    assert_eq!(place["addr"], address(&program, "work"));
    let bytes = std::fs::read(&program).expect("the program");
    let write = &place["writes"][0];
    // In a position-independent program, code of the first segments lies in memory as in the file.
    let at = write["addr"].as_u64().expect("an address") as usize;
    let original: Vec<String> = write["original"]
        .as_str()
        .map(|text| text.split(' ').map(str::to_owned).collect())
        .expect("bytes");
    let expected: Vec<String> = bytes[at..at + original.len()]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(original, expected);
    // The displaced instructions follow each other.
    let mut next = place["displaced"][0]["addr"].as_u64().expect("an address");
    for displaced in place["displaced"].as_array().expect("instructions") {
        assert_eq!(displaced["addr"], next);
        next += displaced["bytes"]
            .as_str()
            .expect("bytes")
            .split(' ')
            .count() as u64;
        assert!(
            displaced["insn"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
    }
    let output = probe(&["--dry-run", "-e", &definition]);
    let said = text(&output.stdout);
    for part in [
        "work+0x0 at",
        "tactic     ",
        "changed    a ",
        "flags      ",
        "displaced →",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_dry_run_of_many_places_is_a_summary() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    let words = [
        "--dry-run",
        "-e",
        "libc.so.6:str*",
        "-e",
        "libc.so.6:str*+*",
    ];
    let output = probe(&[&words[..], &[file]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = text(&output.stdout);
    assert!(said.lines().count() < 30, "{said}");
    assert!(
        said.contains("  places ") && said.contains("    jump "),
        "{said}"
    );
    let output = probe(&[&["-v"], &words[..], &[file]].concat());
    assert!(text(&output.stdout).lines().count() > 1000);
}

#[test]
fn a_dry_run_fails_if_a_definition_has_no_place() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    let good = format!("{file}:work");
    let middle = format!("{file}:main+1");
    let nowhere = format!("{file}:nowhere");
    for (words, message) in [
        (vec!["-e", &good, "-e", &middle], "it is the middle of"),
        (vec!["-e", &nowhere], "names no function"),
        (vec!["-e", "libc.so.6:malloc"], "say in which FILE to look"),
        (
            vec!["-e", "libx.so:malloc", file],
            "nor linked with such a library",
        ),
        (
            vec!["-e", "x:main", "/no/such/file"],
            "there is no file /no/such/file",
        ),
        (vec!["-e", "/no/such/file:main"], "opening /no/such/file"),
        (
            vec!["-e", &good, "-e", "x:main %rex"],
            "there is no register rex",
        ),
        (vec!["-e", "/etc/passwd:main"], "is not an ELF file"),
    ] {
        let output = probe(&[&["--dry-run"], &words[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(message), "{words:?}: {said}");
    }
    // The places of the others are shown.
    let output = probe(&["--dry-run", "-e", &good, "-e", &middle]);
    assert!(text(&output.stdout).contains("work+0x0 at"));
}

#[test]
fn functions_that_can_be_probed_are_listed() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    let output = probe(&["--list", "--json", file]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let all = json(&output);
    let function = |name: &str| {
        let mut all = all.as_array().expect("functions").iter();
        all.find(|f| f["name"] == name)
            .expect("the function")
            .clone()
    };
    let work = function("work");
    assert_eq!(work["addr"], address(&program, "work"));
    assert_eq!(
        (&work["entry"], &work["return"]),
        (&"jump".into(), &true.into())
    );
    // What is listed can be probed, and what is not cannot.
    for one in all.as_array().expect("functions") {
        let name = one["name"].as_str().expect("a name");
        let definition = format!("{file}:{name}");
        let output = probe(&["--dry-run", "-e", &definition]);
        let refused = one["entry"] == Value::Null;
        assert_eq!(
            output.status.code(),
            Some(i32::from(refused)),
            "{name}: {output:?}"
        );
    }
    assert_eq!(function("_start")["return"], false);
    let output = probe(&["-v", "--list", file, "lo*", "_start"]);
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(lines.len(), 3, "{output:?}");
    assert!(lines[0].starts_with("#      ADDRESS    SIZE  ENTRY    RETURN  FUNCTION"));
    assert!(lines[1].contains("_start: no return: ") || lines[2].contains("_start: no return: "));
}

#[test]
fn a_list_of_nothing_tells_why() {
    let program = build("probed.c", Kind::Pie, &[]);
    let file = path(&program);
    for (words, message) in [
        (vec![file, "nowhere", "no*"], "is named nowhere or no*"),
        (vec!["/etc/passwd"], "is not an ELF file"),
        (vec!["/no/such/file"], "there is no file /no/such/file"),
        (vec!["no-such-program"], "there is no file no-such-program"),
    ] {
        let output = probe(&[&["--list"], &words[..]].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(message), "{words:?}: {said}");
    }
    let output = probe(&["--list"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("hodo probe --list FILE [FUNCTION…]"));
}
