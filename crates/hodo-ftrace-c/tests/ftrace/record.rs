//! Recording by preloading.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;

use hodo_trace::{RecordKind, Trace};

use crate::build::{Form, compile, libraries, run_with};

/// How often functions were called, by `child` or `parent` and name: (entries, exits).
type Counts = BTreeMap<(String, String), (u64, u64)>;

fn preloaded(program: &Path, directory: &Path, more: &[(&str, String)]) -> Output {
    let library = libraries("debug").join("libhodo_ftrace.so");
    let mut environment = vec![
        ("LD_PRELOAD", library.display().to_string()),
        ("HODO_FTRACE_RECORD", directory.display().to_string()),
    ];
    environment.extend_from_slice(more);
    run_with(program, &environment, &[])
}

/// What the trace says.
fn recorded(directory: &Path) -> Counts {
    let trace = Trace::open(directory).expect("a trace");
    assert!(trace.damage.is_empty(), "{:?}", trace.damage);
    let first = trace.tasks.first().expect("a task").pid;
    let mut counts = Counts::new();
    for task in &trace.tasks {
        let who = if task.pid == first { "parent" } else { "child" };
        let mut before = 0;
        for record in trace.records(task) {
            assert!(record.time >= before, "time runs backward");
            before = record.time;
            let function = trace.function(record.id).expect("a function");
            let count = counts
                .entry((who.to_owned(), function.name.clone()))
                .or_default();
            match record.kind {
                RecordKind::Entry => count.0 += 1,
                RecordKind::Exit => count.1 += 1,
                kind => panic!("{kind:?}"),
            }
        }
    }
    counts
}

/// What the program says.
fn said(output: &Output) -> BTreeMap<(String, String), u64> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.lines().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let count = words[2].parse().expect("a number");
        ((words[0].to_owned(), words[1].to_owned()), count)
    });
    words.filter(|(_, count)| *count != 0).collect()
}

#[test]
fn preloading_records_a_program_in_our_format() {
    for (name, flags) in [("pg", "-pg"), ("room", "-fpatchable-function-entry=16")] {
        let flags = [flags, "-fno-ipa-ra", "-rdynamic"];
        let program = compile(
            &format!("recorded-{name}"),
            "gcc",
            &["recorded.c"],
            &flags,
            Form::None,
        );
        let program = program.expect("gcc is there");
        let place = tempfile::tempdir().expect("a directory");
        let alone = run_with(&program, &[], &[]);
        let directory = place.path().join("all");
        let output = preloaded(&program, &directory, &[]);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        assert_eq!(
            (&output.stdout, &output.stderr),
            (&alone.stdout, &alone.stderr)
        );
        let trace = recorded(&directory);
        for (which, count) in said(&output) {
            let (entries, exits) = trace.get(&which).copied().unwrap_or_default();
            assert_eq!(entries, count, "{which:?}");
            // What `longjmp` leaves does not return.
            let returns = if which.1 == "jumper" { 0 } else { count };
            assert_eq!(exits, returns, "{which:?}");
        }
        let info = Trace::open(&directory).expect("a trace").info;
        let finished = info.finished.expect("the program has ended");
        assert_eq!(finished.lost, 0);

        // Some functions; and a directory that is there already is left alone.
        let filter = [
            ("HODO_FTRACE_FILTER", "l*, branch".to_owned()),
            ("HODO_FTRACE_NOTRACE", "le*".to_owned()),
        ];
        let other = place.path().join("some");
        preloaded(&program, &other, &filter);
        let names: Vec<String> = recorded(&other).into_keys().map(|(_, name)| name).collect();
        assert!(
            names.iter().all(|name| name == "branch") && !names.is_empty(),
            "{names:?}"
        );
        let again = preloaded(&program, &other, &[]);
        assert!(String::from_utf8_lossy(&again.stderr).contains("some exists: recording to "));
        assert_eq!(again.stdout, alone.stdout);
        let _ = std::fs::remove_file(program);
    }
}

#[test]
fn what_cannot_be_recorded_is_said_and_the_program_runs() {
    let program = compile("unrecorded", "gcc", &["recorded.c"], &["-pg"], Form::None);
    let program = program.expect("gcc is there");
    let output = preloaded(&program, Path::new("/proc/no/such/place"), &[]);
    assert_eq!(output.status.code(), Some(7));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "hodo-ftrace: nothing is recorded in /proc/no/such/place: ";
    assert!(text.starts_with(expected), "{text}");
    let _ = std::fs::remove_file(program);
}
