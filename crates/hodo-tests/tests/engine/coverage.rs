//! `hodo mem coverage` on a program whose lines are known.

use std::path::PathBuf;
use std::process::{Command, Output};

use hodo_tests::{Kind, build, hodo};
use serde_json::Value;

use crate::shown::place;

fn program() -> PathBuf {
    build("covered.c", Kind::Pie, &["-g", "-O0"])
}

fn coverage(arguments: &[&str]) -> Output {
    let mut command = Command::new(hodo());
    command.args(["mem", "coverage", "--only", "*@covered*"]);
    command.args(arguments);
    command.output().expect("hodo can be run")
}

fn only_merged(arguments: &[&str]) -> Output {
    let mut command = Command::new(hodo());
    command.args(["mem", "coverage"]).args(arguments);
    command.output().expect("hodo can be run")
}

fn of_program(arguments: &[&str]) -> Output {
    let program = program();
    let program = program.to_str().expect("text");
    let mut all = arguments.to_vec();
    all.extend(["--", program]);
    let output = coverage(&all);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "child\n3117\n");
    output
}

/// The first line of the program that has some text in it.
fn line_of(text: &str) -> u64 {
    let source = include_str!("../../programs/covered.c").lines().zip(1..);
    let mut found = source.filter(|(line, _)| line.contains(text));
    found.next().expect("such a line").1
}

#[test]
fn lines_and_functions_are_counted() {
    let output = of_program(&["--format", "json"]);
    let value: Value = serde_json::from_slice(&output.stderr).expect("JSON");
    let file = &value["files"][0];
    assert!(
        file["file"]
            .as_str()
            .is_some_and(|name| name.ends_with("covered.c"))
    );
    assert_eq!(file["functions"], serde_json::json!({"hit": 3, "known": 4}));
    let count = |text: &str| {
        let rows = file["line_counts"].as_array().expect("a list").iter();
        let mut rows = rows.filter(|row| row["line"] == line_of(text));
        rows.next().expect("the line has code")["count"].as_u64()
    };
    assert_eq!(count("sum += collatz(i)"), Some(99));
    assert_eq!(count("steps++"), Some(3117));
    assert_eq!(count("return x * 7"), Some(0));
    // In both processes.
    assert_eq!(count("fork()"), Some(2));
    assert_eq!(count("puts("), Some(1));
    let functions = file["function_counts"].as_array().expect("a list").iter();
    let functions = functions.map(|row| (row["name"].as_str(), row["count"].as_u64()));
    assert_eq!(
        functions.collect::<Vec<_>>(),
        [
            (Some("collatz"), Some(99)),
            (Some("in_child"), Some(1)),
            (Some("main"), Some(1)),
            (Some("never"), Some(0)),
        ]
    );
    let text = String::from_utf8_lossy(&of_program(&[]).stderr).into_owned();
    assert!(text.contains("75.0%  functions\n"), "{text}");
    assert!(text.contains("100.0%  collatz, "), "{text}");
}

#[test]
fn tracefiles_are_written_and_merged() {
    let (first, second) = (place("first.info"), place("second.info"));
    of_program(&["--format", "lcov", "-o", &first]);
    of_program(&["--format", "lcov", "--merge", &first, "-o", &second]);
    let text = |path: &str| std::fs::read_to_string(path).expect("the file is written");
    let line = line_of("steps++");
    assert!(text(&first).contains(&format!("\nDA:{line},3117\n")));
    assert!(text(&second).contains(&format!("\nDA:{line},6234\n")));
    assert!(text(&second).contains("\nFNDA:198,collatz\n"));
    // Files can be added to each other without a program.
    let both = ["--format", "lcov", "--merge", &first, "--merge", &first];
    let added = only_merged(&both);
    assert!(
        added.status.success() && added.stderr.is_empty(),
        "{added:?}"
    );
    assert_eq!(added.stdout, text(&second).as_bytes());
    let refused = coverage(&both);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    for senseless in [
        &["--only", "main"][..],
        &["--from", "1"],
        &["--thread", "0"],
    ] {
        let refused = only_merged(&[&both[..], senseless].concat());
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(error.contains("only files are merged"), "{error}");
    }
    let refused = only_merged(&["--merge", &first]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let refused = only_merged(&["--format", "lcov"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let cut = &text(&first)[..100];
    std::fs::write(&second, cut).expect("it can be written");
    let refused = coverage(&["--format", "lcov", "--merge", &second, "--", "true"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("second.info: line "), "{error}");
    let refused = coverage(&["--merge", &first, "--", "true"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

#[test]
fn files_of_drcov_are_the_same_of_runs_and_recordings() {
    let (online, recorded, merged) = (
        place("online.drcov"),
        place("recorded.drcov"),
        place("merged.drcov"),
    );
    let directory = place("covered.mem");
    of_program(&["--format", "drcov", "-o", &online]);
    let mut record = Command::new(hodo());
    record.args(["mem", "record", "-d", &directory, "--"]);
    let status = record.arg(program()).output().expect("hodo can be run");
    assert!(status.status.success(), "{status:?}");
    let from = |arguments: &[&str]| {
        let mut all = vec!["-d", &directory, "--format", "drcov"];
        all.extend(arguments);
        let output = coverage(&all);
        assert!(output.status.success(), "{output:?}");
    };
    from(&["-o", &recorded]);
    from(&["--merge", &online, "-o", &merged]);
    let read = |path: &str| std::fs::read(path).expect("the file is written");
    let file = read(&online);
    assert_eq!(file, read(&recorded));
    assert_eq!(file, read(&merged));
    let both = ["--format", "drcov", "--merge", &online, "--merge", &merged];
    let added = only_merged(&both);
    assert!(added.status.success(), "{added:?}");
    assert_eq!(file, added.stdout);
    let head = String::from_utf8_lossy(&file);
    assert!(
        head.starts_with(
            "DRCOV VERSION: 2\nDRCOV FLAVOR: drcov\nModule Table: version 2, count 1\n"
        )
    );
    let at = head.find("BB Table: ").expect("blocks");
    let blocks = head[at..].split(' ').nth(2).expect("a number");
    let blocks: usize = blocks.parse().expect("a number");
    let begin = file[at..]
        .iter()
        .position(|&byte| byte == b'\n')
        .expect("a line")
        + at
        + 1;
    assert_eq!(file.len() - begin, 8 * blocks);
    std::fs::write(&merged, &file[..file.len() - 3]).expect("it can be written");
    let refused = coverage(&["--format", "drcov", "--merge", &merged, "--", "true"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        error.contains(&format!("byte {begin}: there should be")),
        "{error}"
    );
}
