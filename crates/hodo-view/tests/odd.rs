//! Views of unusual traces.

use std::path::{Path, PathBuf};

use hodo_trace::format::record::{self, ENTRY, EXIT};
use hodo_trace::syscalls::NAMES;
use hodo_trace::testing::Builder;
use hodo_view::{
    DumpFormat, DumpOptions, EventFormat, EventOptions, GraphOptions, InfoOptions, ReplayOptions,
    ReportOptions, SourceOptions, SyscallsOptions,
};
use serde_json::json;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("odd-{name}-{}", std::process::id()))
}

fn source(data: &Path) -> SourceOptions {
    SourceOptions {
        data: data.to_owned(),
        ..SourceOptions::default()
    }
}

fn run(view: impl FnOnce(&mut Vec<u8>) -> anyhow::Result<()>) -> String {
    let mut out = Vec::new();
    view(&mut out).expect("a view");
    String::from_utf8(out).expect("text")
}

/// Writes the hit of a probe with a payload.
fn hit(b: &mut Builder, task: u32, id: u32, time: u64, words: &[u64]) {
    b.record(task, ENTRY, id, 0, time);
    let special = record::SPECIAL_PAYLOAD | record::SPECIAL << record::KIND_SHIFT;
    b.word(task, u64::from(special) << 32 | words.len() as u64);
    for word in words {
        b.word(task, *word);
    }
}

#[test]
fn values_of_hidden_hits_are_not_shown_with_others() {
    let mut b = Builder::new(&directory("hits"), false);
    let f = b.function("f", 'T');
    let probe = b.function("probe", 'B');
    b.log(
        &json!({"probe": {"id": probe, "group": "g", "name": "probe", "symbol": "f", "offset": 0,
        "args": [{"name": "n", "type": "u64", "word": 0, "value": 0, "bits": 64}]}}),
    );
    let task = b.task(100, "start", 0, 0);
    hit(&mut b, task, probe, 0, &[0, 1]);
    b.record(task, ENTRY, f, 9, 0);
    hit(&mut b, task, probe, 0, &[0, 2]);
    b.record(task, EXIT, f, 9, 0);
    let data = b.finish();
    let options = ReplayOptions {
        source: SourceOptions {
            filter: vec!["^f$".to_owned()],
            ..source(&data)
        },
        fields: Some("none".to_owned()),
        ..ReplayOptions::default()
    };
    let text = run(|out| hodo_view::replay(&options, out));
    assert_eq!(text, "f() {\n  /* probe: n=2 */\n} /* f */\n");
    std::fs::remove_dir_all(data).expect("a trace");
}

#[test]
fn huge_times_are_clamped() {
    let mut b = Builder::new(&directory("long"), true);
    let f = b.function("f", 'T');
    let first = b.task(100, "start", 0, 0);
    let second = b.task(101, "thread", first, 0);
    // It appears to have executed another program before it began.
    let third = b.task(100, "exec", first, 0);
    for task in [first, second] {
        b.record(task, ENTRY, f, 9, 5);
        b.leaf(task, f, 8, 5, u64::MAX);
        b.record(task, EXIT, f, 9, u64::MAX);
    }
    b.leaf(third, f, 9, 0, 1);
    let data = b.finish();
    let report = ReportOptions {
        source: source(&data),
        ..ReportOptions::default()
    };
    let text = run(|out| hodo_view::report(&report, out));
    let last = text.lines().last();
    assert_eq!(last, Some("  999.999  h  999.999  h           5  f"));
    let report = ReportOptions {
        task: true,
        ..report
    };
    run(|out| hodo_view::report(&report, out));
    for task in [false, true] {
        let graph = GraphOptions {
            source: source(&data),
            task,
            ..GraphOptions::default()
        };
        run(|out| hodo_view::graph(&graph, out));
    }
    let dump = DumpOptions {
        source: source(&data),
        format: DumpFormat::FlameGraph,
        sample_time: u64::MAX,
    };
    run(|out| hodo_view::dump(&dump, out));
    std::fs::remove_dir_all(data).expect("a trace");
}

#[test]
fn system_calls_may_seem_to_take_for_ever() {
    let mut b = Builder::new(&directory("ever"), true);
    let ids = NAMES.map(|name| {
        let id = b.function(name, 'B');
        b.log(&json!({"probe": {"id": id, "group": "syscalls", "name": name, "symbol": name, "offset": 0}}));
        id
    });
    for tid in [100, 101, 102] {
        let task = b.task(tid, "thread", 0, 0);
        hit(&mut b, task, ids[0], 5, &[u64::MAX << 32, 39]);
        hit(&mut b, task, ids[1], u64::MAX / 2, &[u64::MAX << 32, 7]);
    }
    let data = b.finish();
    let options = SyscallsOptions {
        source: source(&data),
        summary: true,
        ..SyscallsOptions::default()
    };
    let text = run(|out| hodo_view::syscalls(&options, out));
    assert!(text.contains("100.00 18446744073.709551"), "{text}");
    std::fs::remove_dir_all(data).expect("a trace");
}

#[test]
fn values_outside_the_payload_are_faults() {
    let mut b = Builder::new(&directory("nowhere"), true);
    let probe = b.function("probe", 'B');
    b.log(
        &json!({"probe": {"id": probe, "group": "g", "name": "probe", "symbol": "f", "offset": 0,
        "caller": u64::MAX, "args": [
            {"name": "a", "type": "u64", "word": u64::MAX, "value": 0, "bits": 64},
            {"name": "b", "type": "x8[2]", "word": u64::MAX, "value": 0, "bits": 64},
            {"name": "c", "type": "string[2]", "word": 0, "value": u32::MAX, "bits": 64},
        ]}}),
    );
    let task = b.task(100, "start", 0, 0);
    hit(&mut b, task, probe, 1, &[u64::MAX << 32, 1]);
    let data = b.finish();
    let options = EventOptions {
        source: source(&data),
        ..EventOptions::default()
    };
    let text = run(|out| hodo_view::events(&options, out));
    assert!(text.ends_with(" a=(fault) b=(fault) c=(fault)\n"), "{text}");
    std::fs::remove_dir_all(data).expect("a trace");
}

#[test]
fn tasks_are_side_by_side_within_limits() {
    let mut b = Builder::new(&directory("beside"), true);
    let f = b.function("f", 'T');
    for tid in [100, 101] {
        let task = b.task(tid, "start", 0, 0);
        let time = tid.unsigned_abs().into();
        b.leaf(task, f, 9, time, time);
    }
    let data = b.finish();
    let mut options = ReplayOptions {
        source: source(&data),
        fields: Some("none".to_owned()),
        column_view: true,
        column_offset: 2,
        ..ReplayOptions::default()
    };
    let text = run(|out| hodo_view::replay(&options, out));
    assert_eq!(text, "f();\n    f();\n");
    options.column_offset = usize::MAX;
    let error = hodo_view::replay(&options, &mut Vec::new()).expect_err("an error");
    assert_eq!(error.to_string(), "--column-offset is at most 256");
    std::fs::remove_dir_all(data).expect("a trace");
}

#[test]
fn names_do_not_command_the_terminal() {
    let mut b = Builder::new(&directory("terminal"), true);
    b.info["args"] = json!(["prog", "\x1b]0;title\x07"]);
    b.info["cmdline"] = json!(["hodo", "record", "prog", "\x1b]0;title\x07"]);
    let f = b.function("f\x1b[2J", 'T');
    let probe = b.function("probe", 'B');
    b.log(
        &json!({"probe": {"id": probe, "group": "g", "name": "probe", "symbol": "f\x1b[2J", "offset": 0}}),
    );
    let first = b.task_named(100, 100, "\x1b[2J", "start", 0, 0);
    b.record(first, ENTRY, f, 9, 1);
    hit(&mut b, first, probe, 2, &[u64::MAX << 32]);
    b.record(first, EXIT, f, 9, 3);
    b.rename("/usr/bin/\x1b[2J");
    let data = b.finish();
    let source = || source(&data);
    let replay = ReplayOptions {
        source: source(),
        fields: Some("all".to_owned()),
        ..ReplayOptions::default()
    };
    let text = run(|out| hodo_view::replay(&replay, out));
    assert!(text.contains("f\\u{1b}[2J"), "{text:?}");
    let mut all = text;
    for task in [false, true] {
        let options = ReportOptions {
            source: source(),
            task,
            ..ReportOptions::default()
        };
        all += &run(|out| hodo_view::report(&options, out));
        let options = GraphOptions {
            source: source(),
            task,
            ..GraphOptions::default()
        };
        all += &run(|out| hodo_view::graph(&options, out));
    }
    for format in [DumpFormat::Raw, DumpFormat::FlameGraph, DumpFormat::Svg] {
        let options = DumpOptions {
            source: source(),
            format,
            ..DumpOptions::default()
        };
        all += &run(|out| hodo_view::dump(&options, out));
    }
    for (task, symbols) in [(false, false), (true, false), (false, true)] {
        let options = InfoOptions {
            source: source(),
            task,
            symbols,
            ..InfoOptions::default()
        };
        all += &run(|out| hodo_view::info(&options, out));
    }
    let options = EventOptions {
        source: source(),
        ..EventOptions::default()
    };
    all += &run(|out| hodo_view::events(&options, out));
    let raw = all
        .lines()
        .find(|line| line.contains(|c: char| c.is_control() && c != '\t'));
    assert_eq!(raw, None);
    std::fs::remove_dir_all(data).expect("a trace");
}

#[test]
fn places_of_one_function_are_counted_together_and_shown_one_by_one() {
    let data = Builder::new(&directory("counts"), false).finish();
    let counts = json!([
        {"addr": 0x1000, "by_offset": true, "group": "g", "name": "f", "path": "/p", "places": [[0, 3], [4, 0], [10, 7]], "symbol": "f"},
        {"addr": 0x2008, "group": "g", "hits": 5, "name": "f_8", "offset": 8, "path": "/p", "symbol": "f"},
        {"addr": 0x3000, "by_offset": true, "group": "g", "name": "f", "path": "/p", "places": [[4, 0], [10, 0], [12, 0]], "symbol": "f"},
        {"addr": 0x4000, "group": "g", "name": "own", "path": "/p", "places": [[0, 1], [2, 0]], "symbol": "h"},
        {"addr": 0x5000, "group": "g", "hits": 2, "name": "back", "nmissed": 1, "offset": 0, "path": "/p", "symbol": "r"},
        {"addr": 0x6000, "group": "g", "name": "silent", "nmissed": 0, "offset": 0, "path": "/p", "symbol": "r"},
    ]);
    std::fs::write(data.join("counts.json"), counts.to_string()).expect("a file");
    let options = |format| EventOptions {
        source: source(&data),
        format,
    };
    let text = run(|out| hodo_view::counts(&options(EventFormat::Text), out));
    // Two functions have the same name. A place without a hit is shown if the other function has no place of that name.
    assert_eq!(
        text,
        "        HITS  PROBE
           3  f: (f+0x0)
           0  f_4: (f+0x4)
           7  f_a: (f+0xa)
           5  f_8: (f+0x8)
           0  f_c: (f+0xc)
           1  own: (h+0x0)
           0  own: (h+0x2)
           2  back: (<- r), missed: 1
"
    );
    let json = run(|out| hodo_view::counts(&options(EventFormat::Json), out));
    let lines: Vec<&str> = json.lines().collect();
    assert_eq!(lines.len(), 10);
    // Of many places, those that were hit, and how many were not.
    let many: Vec<[u64; 2]> = (0..100)
        .map(|place| [place, u64::from(place == 7)])
        .collect();
    let many = json!([{"addr": 0, "by_offset": true, "group": "g", "name": "f", "path": "/p", "places": many, "symbol": "f"}]);
    std::fs::write(data.join("counts.json"), many.to_string()).expect("a file");
    let text = run(|out| hodo_view::counts(&options(EventFormat::Text), out));
    assert_eq!(
        text,
        "        HITS  PROBE
           1  f_7: (f+0x7)
           0  (99 more places were not hit)
"
    );
    std::fs::write(data.join("counts.json"), counts.to_string()).expect("a file");
    assert_eq!(
        lines[2],
        r#"{"addr":4106,"group":"g","hits":7,"name":"f_a","offset":10,"path":"/p","symbol":"f"}"#
    );
    assert_eq!(
        lines[9],
        r#"{"addr":20480,"group":"g","hits":2,"name":"back","nmissed":1,"offset":0,"path":"/p","symbol":"r"}"#
    );
    let info = run(|out| {
        let options = InfoOptions {
            source: source(&data),
            json: true,
            ..InfoOptions::default()
        };
        hodo_view::info(&options, out)
    });
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    assert_eq!(info["probes"][5]["addr"], 0x3000 + 10);
}
