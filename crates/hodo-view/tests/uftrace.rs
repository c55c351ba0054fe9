//! The views show what uftrace shows of the same calls, byte for byte. `tests/uftrace/regenerate.py` wrote down both.
//!
//! What differs on purpose is in `tests/uftrace/PROGRAM.differs`, with the reasons; `HODO_BLESS=1` rewrites it.
//! `ONLY='replay -D 1'` tries one command line, and shows all differences.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use hodo_trace::format::record::{ENTRY, EXIT};
use hodo_trace::testing::Builder;
use hodo_view::{
    DumpFormat, DumpOptions, GraphOptions, Match, ReplayOptions, ReportOptions, SourceOptions,
    Style,
};

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/uftrace")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Makes a trace from what uftrace recorded.
fn build(program: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("uftrace-{program}"));
    let mut trace = Builder::new(&directory, true);
    trace.info["clock"]["samples"] =
        serde_json::json!([{"counter": 0, "ns": 0}, {"counter": 1u64 << 40, "ns": 1u64 << 40}]);
    let mut functions = HashMap::new();
    // By thread: the tasks that it was, each with the time of its beginning.
    let mut tasks: HashMap<i32, Vec<(u64, u32)>> = HashMap::new();
    let mut first = true;
    for line in fixture(&format!("{program}.trace")).lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let hex = |at: usize| u64::from_str_radix(words[at], 16).expect("a number");
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        match words[0] {
            "module" => {
                if !std::mem::take(&mut first) {
                    trace.module(words[1]);
                } else {
                    trace.rename(words[1]);
                }
            }
            "function" => {
                let kind = words[3].chars().next().expect("a letter");
                functions.insert(hex(1), trace.function_at(words[4], kind, hex(1), hex(2)));
            }
            "task" => {
                let (tid, time) = (number(1) as i32, number(6));
                let parent = tasks
                    .get(&(number(5) as i32))
                    .and_then(|tasks| tasks.last())
                    .map_or(0, |task| task.1);
                let pid = number(2) as i32;
                let task = trace.task_named(tid, pid, words[3], words[4], parent, time);
                tasks.entry(tid).or_default().push((time, task));
            }
            _ => {
                let time = number(0);
                let task = tasks[&(number(1) as i32)]
                    .iter()
                    .rfind(|task| task.0 <= time)
                    .unwrap_or_else(|| panic!("{line}: its task begins later"));
                let kind = if words[2] == "entry" { ENTRY } else { EXIT };
                let sp = 1000 - number(4) as u32 * 3;
                trace.record(task.1, kind, functions[&hex(3)], sp, time);
            }
        }
    }
    trace.finish()
}

/// Returns what hodo shows for a command line.
fn show(data: &Path, line: &str) -> anyhow::Result<String> {
    let mut words = line.split(' ');
    let command = words.next().unwrap_or_default();
    let mut source = SourceOptions {
        data: data.to_owned(),
        ..SourceOptions::default()
    };
    let mut replay = ReplayOptions::default();
    let mut report = ReportOptions::default();
    let mut graph = GraphOptions::default();
    let mut dump = DumpOptions::default();
    let mut fields = None;
    while let Some(word) = words.next() {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (word, None),
        };
        let mut value = || value.or_else(|| words.next()).expect("a value").to_owned();
        let time = |text: String| hodo_view::parse_time(&text).expect("a time");
        match option {
            "-f" => fields = Some(value()),
            "-F" => source.filter.push(value()),
            "-N" => source.notrace.push(value()),
            "-H" => source.hide.push(value()),
            "-D" => source.depth = Some(value().parse()?),
            "-Z" => source.size_filter = value().parse()?,
            "-t" => source.time_filter = Some(time(value())),
            "-r" => source.range = Some(value().parse()?),
            "-s" => report.sort = Some(value()),
            "--tid" => source.tids.push(value().parse()?),
            "--no-libcall" => source.no_libcall = true,
            "--libname" => source.libname = true,
            "--color" => source.color = value() == "yes",
            "--match" => source.pattern = (value() == "glob").then_some(Match::Glob),
            "--demangle" => {
                source.demangle = match value().as_str() {
                    "full" => Style::Full,
                    "no" => Style::Raw,
                    _ => Style::Simple,
                }
            }
            "--no-comment" => replay.comments = false,
            "--flat" => replay.flat = true,
            "--column-view" => replay.column_view = true,
            "--column-offset" => replay.column_offset = value().parse()?,
            "--task-newline" => replay.task_newline = true,
            "--avg-total" => report.avg_total = true,
            "--avg-self" => report.avg_self = true,
            "--task" => {
                report.task = true;
                graph.task = true;
            }
            "--chrome" => dump.format = DumpFormat::Chrome,
            "--flame-graph" => dump.format = DumpFormat::FlameGraph,
            "--sample-time" => dump.sample_time = time(value()),
            _ if !option.starts_with('-') => graph.function = Some(option.to_owned()),
            _ => panic!("{line}: what is {option}?"),
        }
    }
    let mut out = Vec::new();
    match command {
        "replay" => {
            (replay.source, replay.fields) = (source, fields);
            hodo_view::replay(&replay, &mut out)?;
        }
        "report" => {
            (report.source, report.fields) = (source, fields);
            hodo_view::report(&report, &mut out)?;
        }
        "graph" => {
            (graph.source, graph.fields) = (source, fields);
            hodo_view::graph(&graph, &mut out)?;
        }
        "dump" => {
            dump.source = source;
            hodo_view::dump(&dump, &mut out)?;
        }
        _ => panic!("what is {command}?"),
    }
    Ok(String::from_utf8(out)?)
}

/// Writes `SESSION` in place of a session's number, and removes the header of dumps.
fn normal(text: &str) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        if line.starts_with("hodo file header") {
            continue;
        }
        match line.split_once("(session: ") {
            Some((before, after)) => {
                assert_eq!(after.trim_end().len(), 17, "{line}");
                let _ = writeln!(out, "{before}(session: SESSION)");
            }
            None => out.push_str(line),
        }
    }
    out
}

/// Returns what comes before the first case, then command lines and their output, as in the files.
fn cases(text: &str) -> (&str, Vec<(&str, &str)>) {
    let (before, text) = text.split_at(text.find("$ ").unwrap_or(text.len()));
    let cases = text.strip_prefix("$ ").unwrap_or("").split("\n$ ");
    let cases = cases.filter(|case| !case.is_empty());
    (
        before,
        cases
            .map(|case| case.split_once('\n').unwrap_or((case, "")))
            .collect(),
    )
}

/// Returns the lines that differ.
fn difference(expected: &str, actual: &str, most: usize) -> String {
    let mut text = String::new();
    let (mut a, mut b) = (expected.lines(), actual.lines());
    let mut shown = 0;
    for number in 1.. {
        match (a.next(), b.next()) {
            (None, None) => break,
            (a, b) if a == b => {}
            (a, b) => {
                let _ = writeln!(text, "{number}: uftrace: {a:?}\n{number}: hodo:    {b:?}");
                shown += 1;
                if shown == most {
                    break;
                }
            }
        }
    }
    text
}

fn compare(program: &str) {
    let data = build(program);
    let shown = fixture(&format!("{program}.shown"));
    let differs = fixture(&format!("{program}.differs"));
    let (reasons, differs) = cases(&differs);
    let differs: HashMap<&str, &str> = differs.into_iter().collect();
    let only = std::env::var("ONLY").ok();
    let mut failed = Vec::new();
    let mut report = String::new();
    let mut blessed = reasons.to_owned();
    let mut used = 0;
    for (line, expected) in cases(&shown).1 {
        if only.as_ref().is_some_and(|only| only != line) {
            continue;
        }
        let actual = show(&data, line).unwrap_or_else(|error| format!("error: {error:#}"));
        // Sessions are numbered differently. The last line break belongs to the next case.
        let actual = normal(&actual);
        let (actual, expected) = (
            actual.trim_end_matches('\n'),
            expected.trim_end_matches('\n'),
        );
        let expected = match differs.get(line) {
            Some(_) if actual == expected => panic!("{line}: this differs no more"),
            Some(ours) => {
                let _ = write!(blessed, "$ {line}\n{actual}\n");
                used += 1;
                ours.trim_end_matches('\n')
            }
            None => expected,
        };
        if actual != expected {
            failed.push(line);
            let most = if only.is_some() { 1000 } else { 4 };
            let _ = writeln!(report, "\n$ {line}\n{}", difference(expected, actual, most));
        }
    }
    if std::env::var_os("HODO_BLESS").is_some() && only.is_none() {
        let path = format!("tests/uftrace/{program}.differs");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        std::fs::write(path, blessed).expect("the file of differences");
    }
    assert!(
        failed.is_empty(),
        "{report}\n{} cases differ:\n{}",
        failed.len(),
        failed.join("\n")
    );
    assert!(
        only.is_some() || used == differs.len(),
        "{program}: a difference that is no case"
    );
}

#[test]
fn nested_calls() {
    compare("abc");
}

#[test]
fn threads_forks_and_programs() {
    compare("fork");
}

#[test]
fn recursion_and_long_times() {
    compare("tree");
}

#[test]
fn names_of_cpp() {
    compare("names");
}
