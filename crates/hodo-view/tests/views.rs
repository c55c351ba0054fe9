//! What views make of rare, handmade traces.

use std::path::{Path, PathBuf};

use hodo_trace::format::record::{self, ENTRY, EXIT};
use hodo_trace::syscalls::NAMES;
use hodo_trace::testing::Builder;
use hodo_view::{
    DumpFormat, DumpOptions, Match, ReplayOptions, ReportOptions, SourceOptions, SyscallsFormat,
    SyscallsOptions,
};
use serde_json::{Value, json};

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("views-{name}-{}", std::process::id()))
}

fn source(data: &Path) -> SourceOptions {
    SourceOptions {
        data: data.to_owned(),
        ..SourceOptions::default()
    }
}

fn text(view: impl FnOnce(&mut Vec<u8>) -> anyhow::Result<()>) -> String {
    let mut out = Vec::new();
    view(&mut out).expect("a view");
    String::from_utf8(out).expect("text")
}

/// Returns the lines of a replay, without columns.
fn replay(data: &Path, change: impl FnOnce(&mut SourceOptions)) -> Vec<String> {
    let mut options = ReplayOptions {
        source: source(data),
        fields: Some("none".to_owned()),
        comments: true,
        merge: true,
        ..ReplayOptions::default()
    };
    change(&mut options.source);
    let text = text(|out| hodo_view::replay(&options, out));
    text.lines().map(|line| line.trim().to_owned()).collect()
}

/// Writes a hit. `words` are its payload after the first word.
fn hit(b: &mut Builder, task: u32, id: u32, time: u64, words: &[u64]) {
    b.record(task, ENTRY, id, 0, time);
    let special = record::SPECIAL_PAYLOAD | record::SPECIAL << record::KIND_SHIFT;
    b.word(task, u64::from(special) << 32 | (words.len() as u64 + 1));
    b.word(task, u64::from(u32::MAX) << 32);
    for word in words {
        b.word(task, *word);
    }
}

/// The stack of each level is as long as all names up to there: only those that are written may be copied.
#[test]
fn deep_flame_graphs_take_no_time_for_what_they_do_not_write() {
    const DEPTH: u32 = 60_000;
    let mut b = Builder::new(&directory("deep"), true);
    let name = "a_long_name_".repeat(20);
    let id = b.function(&name, 'T');
    let task = b.task(100, "start", 0, 1000);
    let frame = |level: u32| 2 * DEPTH - level;
    for level in 0..DEPTH {
        b.record(task, ENTRY, id, frame(level), 1000 + u64::from(level));
    }
    for level in (0..DEPTH).rev() {
        b.record(task, EXIT, id, frame(level), 200_000 - u64::from(level));
    }
    b.end(task, 300_000);
    let options = |sample_time| DumpOptions {
        source: SourceOptions {
            raw_times: true,
            ..source(&b.finish())
        },
        format: DumpFormat::FlameGraph,
        sample_time,
    };
    // Only the innermost call has this much time of its own.
    let options = options(50_000);
    let begun = std::time::Instant::now();
    let lines = text(|out| hodo_view::dump(&options, out));
    assert_eq!(lines.lines().count(), 1);
    assert_eq!(lines.matches(&name).count(), DEPTH as usize);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[test]
fn a_successful_execve_has_a_result() {
    let mut b = Builder::new(&directory("execve"), true);
    let [enter, exit] = NAMES.map(|name| {
        let id = b.function(name, 'B');
        b.log(&json!({"probe": {"id": id, "group": "syscalls", "name": name, "symbol": name, "offset": 0}}));
        id
    });
    let (read, execve, getpid, exit_group) = (0, 59, 39, 231);
    let old = b.task(100, "start", 0, 1);
    hit(&mut b, old, enter, 5, &[read, 0, 0, 0]);
    // A signal handler interrupted this call.
    hit(&mut b, old, enter, 10, &[execve, 0, 0, 0]);
    b.end(old, 50);
    let new = b.task(100, "exec", old, 60);
    hit(&mut b, new, enter, 70, &[getpid]);
    hit(&mut b, new, exit, 80, &[100]);
    hit(&mut b, new, enter, 90, &[exit_group, 0]);
    b.end(new, 100);
    let options = SyscallsOptions {
        source: source(&b.finish()),
        format: SyscallsFormat::Json,
        ..SyscallsOptions::default()
    };
    let text = text(|out| hodo_view::syscalls(&options, out));
    let calls: Vec<Value> = text
        .lines()
        .map(|line| {
            let call: Value = serde_json::from_str(line).expect("JSON");
            json!([call["name"], call["result"], call["duration_ns"]])
        })
        .collect();
    assert_eq!(
        calls,
        [
            json!(["execve", 0, 50]),
            json!(["read", null, null]),
            json!(["getpid", 100, 10]),
            json!(["exit_group", null, null]),
        ]
    );
}

#[test]
fn functions_of_unknown_size_are_not_too_small() {
    let mut b = Builder::new(&directory("sizes"), true);
    let main = b.function_at("main", 'T', 0x1000, 100);
    let small = b.function_at("small", 'T', 0x1100, 10);
    let without = b.function_at("without", 'T', 0x1180, 0);
    let puts = b.function_at("puts", 'P', 0x1200, 0);
    let exit = b.function_at("exit", 'p', 0x1210, 0);
    let probe = b.function_at("probe", 'B', 0x1220, 0);
    b.log(&json!({"probe": {"id": probe, "group": "g", "name": "probe", "symbol": "main", "offset": 8}}));
    let task = b.task(100, "start", 0, 1);
    b.record(task, ENTRY, main, 90, 10);
    b.leaf(task, small, 80, 20, 21);
    b.leaf(task, without, 80, 22, 23);
    b.leaf(task, puts, 80, 30, 31);
    hit(&mut b, task, probe, 40, &[]);
    b.record(task, ENTRY, exit, 80, 50);
    b.record(task, EXIT, main, 90, 60);
    let lines = replay(&b.finish(), |o| o.size_filter = 64);
    assert_eq!(
        lines,
        [
            "main() {",
            "puts();",
            "/* probe */",
            "exit();",
            "} /* main */"
        ]
    );
}

#[test]
fn without_times_nothing_is_too_short_or_out_of_range() {
    let trace = |name: &str, time: Option<u64>| {
        let mut b = Builder::new(&directory(name), false);
        if let Some(time) = time {
            b.info["filters"] = json!({"time_ns": time});
        }
        let main = b.function("main", 'T');
        let task = b.task(100, "start", 0, 1);
        b.leaf(task, main, 90, 0, 0);
        b.finish()
    };
    let report = |source: SourceOptions| {
        let options = ReportOptions {
            source,
            ..ReportOptions::default()
        };
        text(|out| hodo_view::report(&options, out))
    };
    let plain = trace("untimed", None);
    let all = report(source(&plain));
    assert!(all.contains("main"), "{all}");
    let recorded = trace("untimed-recorded", Some(1000));
    assert_eq!(replay(&recorded, |_| ()), ["main();"]);
    assert_eq!(report(source(&recorded)), all);

    let short = |o: &mut SourceOptions| o.time_filter = Some(1000);
    let late = |o: &mut SourceOptions| {
        o.range = Some("1ms~".parse().expect("a range"));
        // Another filter is checked, too.
        o.depth = Some(9);
    };
    let changes: [&dyn Fn(&mut SourceOptions); 2] = [&short, &late];
    for change in changes {
        assert_eq!(replay(&plain, |o| change(o)), ["main();"]);
        let mut options = source(&plain);
        change(&mut options);
        assert_eq!(report(options), all);
    }
}

#[test]
fn calls_end_in_chromes_format_when_another_program_is_executed() {
    let mut b = Builder::new(&directory("replaced"), true);
    let main = b.function("main", 'T');
    let run = b.function("run", 'T');
    let next = b.function("next", 'T');
    let old = b.task(100, "start", 0, 1);
    b.record(old, ENTRY, main, 90, 10);
    b.record(old, ENTRY, run, 80, 20);
    b.end(old, 30);
    let new = b.task(100, "exec", old, 40);
    b.leaf(new, next, 90, 50, 60);
    b.record(new, ENTRY, next, 90, 65);
    b.end(new, 70);
    // Another process with the same number.
    let reused = b.task(100, "fork", 0, 80);
    b.leaf(reused, next, 90, 90, 95);
    let options = DumpOptions {
        source: source(&b.finish()),
        format: DumpFormat::Chrome,
        ..DumpOptions::default()
    };
    let dump: Value =
        serde_json::from_str(&text(|out| hodo_view::dump(&options, out))).expect("JSON");
    let events: Vec<String> = dump["traceEvents"]
        .as_array()
        .expect("events")
        .iter()
        .filter(|event| event["ph"] != "M")
        .map(|event| format!("{} {} {}", event["ts"], event["ph"], event["name"]).replace('"', ""))
        .collect();
    assert_eq!(
        events,
        [
            "0.01 B main",
            "0.02 B run",
            "0.05 E run",
            "0.05 E main",
            "0.05 B next",
            "0.06 E next",
            "0.065 B next",
            "0.09 E next",
            "0.09 B next",
            "0.095 E next",
        ]
    );
}

#[test]
fn patterns_of_the_recording_are_read_as_they_were_there() {
    let trace = |name: &str, kind: &str, filter: &str| {
        let mut b = Builder::new(&directory(name), true);
        b.info["patterns"] = kind.into();
        b.info["filters"] = json!({"filter": [filter], "notrace": ["other"]});
        let one = b.function("parse_one", 'T');
        let memcpy = b.function("memcpy", 'T');
        let other = b.function("other", 'T');
        let task = b.task(100, "start", 0, 1);
        b.record(task, ENTRY, one, 90, 10);
        b.leaf(task, memcpy, 80, 20, 30);
        b.leaf(task, other, 80, 40, 50);
        b.record(task, EXIT, one, 90, 60);
        b.finish()
    };
    let words = |text: &str| vec![text.to_owned()];
    for (name, kind, filter) in [
        ("regexes", "regex", "^parse_"),
        ("globs", "glob", "parse_*"),
    ] {
        let data = trace(name, kind, filter);
        for (kind, asked) in [(Match::Glob, "mem*"), (Match::Regex, "^mem")] {
            let lines = replay(&data, |o| {
                o.pattern = Some(kind);
                o.notrace = words(asked);
            });
            assert_eq!(lines, ["parse_one();"], "{name} {asked}");
        }
        // Without --match, patterns are read as in the recording.
        let lines = replay(&data, |o| {
            o.notrace = words(&filter.replace("parse_", "mem"))
        });
        assert_eq!(lines, ["parse_one();"], "{name}");
    }
}

#[test]
fn a_recursion_has_the_time_of_its_outermost_call_that_is_counted() {
    let mut b = Builder::new(&directory("recursion"), true);
    let f = b.function("f", 'T');
    let task = b.task(100, "start", 0, 1);
    b.record(task, ENTRY, f, 90, 0);
    b.leaf(task, f, 80, 2_000_000, 3_000_000);
    b.record(task, EXIT, f, 90, 4_000_000);
    let data = b.finish();
    // The outer call begins before the first and ends after the second, so it is cut.
    for (range, took) in [
        ("1ms~", "3.000"),
        ("~3500us", "3.500"),
        ("1ms~3500us", "2.500"),
    ] {
        let mut options = ReportOptions {
            source: source(&data),
            ..ReportOptions::default()
        };
        options.source.range = Some(range.parse().expect("a range"));
        let text = text(|out| hodo_view::report(&options, out));
        let line = text.lines().last().expect("a line");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            [took, "ms", took, "ms", "2", "f"],
            "{range}:\n{text}"
        );
    }
}

fn dump(data: &Path, format: DumpFormat, range: Option<&str>) -> String {
    let mut options = DumpOptions {
        source: source(data),
        format,
        ..DumpOptions::default()
    };
    options.source.range = range.map(|range| range.parse().expect("a range"));
    text(|out| hodo_view::dump(&options, out))
}

#[test]
fn a_range_of_time_has_both_ends_of_each_call() {
    let mut b = Builder::new(&directory("cut"), true);
    let main = b.function("main", 'T');
    let f = b.function("f", 'T');
    let task = b.task(100, "start", 0, 1);
    b.record(task, ENTRY, main, 90, 1_000);
    for at in 0..10 {
        b.leaf(task, f, 80, 100_000 * at + 10_000, 100_000 * at + 90_000);
    }
    b.record(task, EXIT, main, 90, 2_000_000);
    b.end(task, 3_000_000);
    let data = b.finish();
    for range in [
        "~50us",
        "50us~",
        "50us~250us",
        "95us~99us",
        "1500us~",
        "~1500us",
    ] {
        let text = dump(&data, DumpFormat::Chrome, Some(range));
        let value: Value = serde_json::from_str(&text).expect("JSON");
        let events = value["traceEvents"].as_array().expect("events");
        let mut open = 0;
        let mut seen = 0;
        for event in events {
            match event["ph"].as_str() {
                Some("B") => open += 1,
                Some("E") => open -= 1,
                _ => continue,
            }
            seen += 1;
            assert!(open >= 0, "{range}: {text}");
        }
        assert!(open == 0 && seen >= 2, "{range}: {text}");
        // main is shown, with the time within the range.
        let mut options = ReportOptions {
            source: source(&data),
            ..ReportOptions::default()
        };
        options.source.range = Some(range.parse().expect("a range"));
        let report = self::text(|out| hodo_view::report(&options, out));
        assert!(report.contains(" main\n"), "{range}: {report}");
        let folded = dump(&data, DumpFormat::FlameGraph, Some(range));
        assert!(folded.starts_with("main "), "{range}: {folded}");
    }
    assert_eq!(
        dump(&data, DumpFormat::FlameGraph, Some("40us~60us")),
        "main;f 20\n"
    );
}

#[test]
fn the_bar_of_the_whole_graph_has_a_label() {
    let mut b = Builder::new(&directory("svg"), true);
    let main = b.function("main", 'T');
    let task = b.task(100, "start", 0, 1);
    b.leaf(task, main, 90, 1_000, 9_000);
    let text = dump(&b.finish(), DumpFormat::Svg, None);
    assert!(text.contains(">all</text>"), "{text}");
    assert!(text.contains(">main</text>"), "{text}");
}
