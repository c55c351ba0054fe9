//! The cost of recording is subtracted from sums of times, exactly and in the same way by all views.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use hodo_trace::format::record::{ENTRY, EXIT, TAIL};
use hodo_trace::testing::Builder;
use hodo_view::{
    DumpFormat, DumpOptions, GraphOptions, InfoOptions, ReportFormat, ReportOptions, SourceOptions,
    TailCalls,
};
use serde_json::{Value, json};

/// The cost of a call: 10 units inside it and 6 around it, or 12 if only the entry is recorded.
const INSIDE: u64 = 10;
const OUTSIDE: u64 = 6;
const ENTRY_ONLY: u64 = 12;

fn builder(name: &str) -> (Builder, PathBuf) {
    let at = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let at = at.join(format!("costs-{name}-{}", std::process::id()));
    let mut builder = Builder::new(&at, true);
    builder.info["costs"] = json!({"inside": 10.0, "outside": 6.0, "entry": 12.0});
    (builder, at)
}

fn source(data: &Path, raw_times: bool) -> SourceOptions {
    SourceOptions {
        data: data.to_owned(),
        raw_times,
        ..SourceOptions::default()
    }
}

fn text(view: impl FnOnce(&mut Vec<u8>) -> anyhow::Result<()>) -> String {
    let mut out = Vec::new();
    view(&mut out).expect("a view");
    String::from_utf8(out).expect("text")
}

/// Returns the total and the self time of each function.
fn times(source: SourceOptions) -> HashMap<String, (u64, u64)> {
    let options = ReportOptions {
        source,
        format: ReportFormat::Json,
        ..ReportOptions::default()
    };
    let rows: Value =
        serde_json::from_str(&text(|out| hodo_view::report(&options, out))).expect("JSON");
    let rows = rows.as_array().expect("a list").iter();
    rows.map(|row| {
        let number = |key: &str| row[key].as_u64().expect("a number");
        let name = row["name"].as_str().expect("a name").to_owned();
        (name, (number("total_ns"), number("self_ns")))
    })
    .collect()
}

/// Returns the lines of a flame graph.
fn folded(source: SourceOptions) -> HashMap<String, u64> {
    let options = DumpOptions {
        source,
        format: DumpFormat::FlameGraph,
        sample_time: 1,
    };
    let text = text(|out| hodo_view::dump(&options, out));
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    lines
        .map(|(path, count)| (path.to_owned(), count.parse().expect("a number")))
        .collect()
}

/// Writes a trace in which `outer` calls `leaf` `times` times. `leaf` takes 3, and `outer` works 5 before each call. It
/// also calls `entry` once, whose exit is not recorded.
fn calls(name: &str, times: u64) -> PathBuf {
    let (mut b, at) = builder(name);
    let [outer, leaf] = ["outer", "leaf"].map(|name| b.function(name, 'T'));
    let entry = b.function("entry", 'E');
    let mut now = 1000;
    let task = b.task(100, "start", 0, now);
    b.record(task, ENTRY, outer, 9, now);
    for _ in 0..times {
        now += OUTSIDE + 5;
        b.record(task, ENTRY, leaf, 8, now);
        now += INSIDE + 3;
        b.record(task, EXIT, leaf, 8, now);
    }
    b.record(task, ENTRY, entry, 8, now + 5);
    now += ENTRY_ONLY + INSIDE;
    b.record(task, EXIT, outer, 9, now);
    b.finish();
    at
}

#[test]
fn reports_and_flame_graphs_subtract_the_cost() {
    let at = calls("loop", 1000);
    let report = times(source(&at, false));
    assert_eq!(report["leaf"], (3000, 3000));
    assert_eq!(report["outer"], (8000, 5000));
    assert_eq!(report["entry"], (0, 0));
    let graph = folded(source(&at, false));
    assert_eq!((graph["outer"], graph["outer;leaf"]), (5000, 3000));

    let raw = times(source(&at, true));
    assert_eq!(raw["leaf"], (13_000, 13_000));
    assert_eq!(raw["outer"], (24_022, 11_022));
    let graph = folded(source(&at, true));
    assert_eq!((graph["outer"], graph["outer;leaf"]), (11_022, 13_000));
}

#[test]
fn graphs_take_it_off() {
    let at = calls("graph", 1000);
    let graph = |raw| {
        let options = GraphOptions {
            source: source(&at, raw),
            ..GraphOptions::default()
        };
        text(|out| hodo_view::graph(&options, out))
    };
    assert!(graph(false).contains("8.000 us"), "{}", graph(false));
    assert!(graph(true).contains("24.022 us"), "{}", graph(true));
}

#[test]
fn costs_of_left_out_calls_are_subtracted_too() {
    let at = calls("filters", 1000);
    // A call too short to be shown: its time, without the cost of recording it, counts for its caller.
    let short = SourceOptions {
        time_filter: Some(100),
        ..source(&at, false)
    };
    assert_eq!(times(short)["outer"], (8000, 8000));
    // The time of a hidden function counts for no function.
    let hidden = SourceOptions {
        notrace: vec!["leaf".to_owned()],
        ..source(&at, false)
    };
    assert_eq!(times(hidden)["outer"], (8000, 5000));
}

#[test]
fn a_time_is_never_negative() {
    let (mut b, at) = builder("negative");
    let [outer, leaf] = ["outer", "leaf"].map(|name| b.function(name, 'T'));
    let task = b.task(100, "start", 0, 1);
    // All of this is faster than recording usually is.
    b.record(task, ENTRY, outer, 9, 100);
    b.record(task, ENTRY, leaf, 8, 102);
    b.record(task, EXIT, leaf, 8, 103);
    b.record(task, EXIT, outer, 9, 104);
    b.finish();
    let report = times(source(&at, false));
    assert_eq!(report["leaf"], (0, 0));
    assert_eq!(report["outer"], (0, 0));
    assert!(folded(source(&at, false)).values().all(|&ns| ns == 0));
}

#[test]
fn a_function_takes_no_less_than_what_it_calls() {
    let (mut b, at) = builder("less");
    let [outer, inner, leaf] = ["outer", "inner", "leaf"].map(|name| b.function(name, 'T'));
    let task = b.task(100, "start", 0, 1);
    b.record(task, ENTRY, outer, 9, 100);
    b.record(task, ENTRY, inner, 8, 101);
    b.record(task, ENTRY, leaf, 7, 102);
    b.record(task, EXIT, leaf, 7, 202);
    b.record(task, EXIT, inner, 8, 203);
    b.record(task, EXIT, outer, 9, 204);
    b.finish();
    let graph = folded(source(&at, false));
    assert_eq!(graph["outer;inner;leaf"], 90);
    // The two other functions have no time of their own.
    assert_eq!(graph.values().sum::<u64>(), 90);
    let options = GraphOptions {
        source: source(&at, false),
        ..GraphOptions::default()
    };
    let graph = text(|out| hodo_view::graph(&options, out));
    assert_eq!(
        graph.matches("90.000 ns").count() + graph.matches("0.090 us").count(),
        4,
        "{graph}"
    );
}

#[test]
fn jumps_from_function_to_function_have_one_exit() {
    let (mut b, at) = builder("jumps");
    let [top, next] = ["top", "next"].map(|name| b.function(name, 'T'));
    let task = b.task(100, "start", 0, 1);
    let mut now = 100;
    for _ in 0..100 {
        b.record(task, ENTRY, top, 9, now);
        // The record of a jump costs as much as that of an entry, including what is inside the call that the jump
        // makes.
        now += INSIDE + 7 + (ENTRY_ONLY - INSIDE);
        b.record(task, TAIL, next, 9, now);
        now += INSIDE + 20;
        b.record(task, EXIT, top, 9, now);
        now += OUTSIDE;
    }
    b.finish();
    let report = times(source(&at, false));
    assert_eq!(report["top"], (2700, 700));
    assert_eq!(report["next"], (2000, 2000));
    let flat = SourceOptions {
        tail_calls: TailCalls::Flat,
        ..source(&at, false)
    };
    assert_eq!(times(flat)["next"], (2000, 2000));
}

#[test]
fn recursion_is_counted_once() {
    let (mut b, at) = builder("recursion");
    let again = b.function("again", 'T');
    let task = b.task(100, "start", 0, 1);
    let mut now = 100;
    for depth in 0..50 {
        b.record(task, ENTRY, again, 60 - depth, now);
        now += 16;
    }
    for depth in (0..50).rev() {
        b.record(task, EXIT, again, 60 - depth, now);
        now += 10;
    }
    b.finish();
    // 50 units of 16 and 49 of 10; 50 calls with 10 inside, 49 of which have 6 around them.
    let all = 50 * 16 + 49 * 10 - 50 * INSIDE - 49 * OUTSIDE;
    assert_eq!(times(source(&at, false))["again"], (all, all));
}

#[test]
fn info_shows_the_cost_of_recording() {
    let at = calls("info", 1000);
    let info = |json| {
        let options = InfoOptions {
            source: source(&at, false),
            json,
            ..InfoOptions::default()
        };
        text(|out| hodo_view::info(&options, out))
    };
    let line = info(false);
    let line = line.lines().find(|line| line.contains("cost of recording"));
    // 1001 calls of 16, and one of 12, in 24022.
    let want =
        "0.000 sec, 66.7 % of the time (16.0 ns a call, 12.0 where only the entry is recorded)";
    assert!(line.is_some_and(|line| line.ends_with(want)), "{line:?}");
    let value: Value = serde_json::from_str(&info(true)).expect("JSON");
    assert_eq!(value["cost"]["call_ns"], 16.0);
}

#[test]
fn the_trace_shows_whether_the_machine_was_slower_later() {
    // When the costs were measured, two records with almost nothing in between were 10 apart. Now they are 20 or 5
    // apart.
    for (closest, ratio) in [(20, 2), (5, 1)] {
        let (mut b, at) = builder(&format!("slower-{closest}"));
        b.info["costs"]["closest"] = json!(10.0);
        let [outer, leaf] = ["outer", "leaf"].map(|name| b.function(name, 'T'));
        let task = b.task(100, "start", 0, 1);
        let mut now = 100;
        b.record(task, ENTRY, outer, 9, now);
        for call in 0..10_000 {
            now += 100;
            b.record(task, ENTRY, leaf, 8, now);
            // Now and then, recording is as fast as it was.
            now += if closest > 10 && call % 10 == 0 {
                10
            } else {
                closest
            };
            b.record(task, EXIT, leaf, 8, now);
        }
        b.record(task, EXIT, outer, 9, now + 100);
        b.finish();
        let report = times(source(&at, false));
        // Their mean is 19 or 5, so the costs are 1.9 times or half as large.
        let raw = times(source(&at, true));
        let tenths = if ratio == 2 { 19 } else { 5 };
        let near = |a: u64, b: u64| a.abs_diff(b) <= 700;
        assert!(
            near(
                report["leaf"].1,
                raw["leaf"].1 - 10_000 * INSIDE * tenths / 10
            ),
            "{report:?}"
        );
        assert!(
            near(
                report["outer"].1,
                raw["outer"].1 - 10_000 * OUTSIDE * tenths / 10
            ),
            "{report:?}"
        );
    }
}

#[test]
fn slow_functions_do_not_make_recording_look_slow() {
    let (mut b, at) = builder("slow");
    b.info["costs"]["closest"] = json!(10.0);
    let leaf = b.function("leaf", 'T');
    let task = b.task(100, "start", 0, 1);
    let mut now = 100;
    for _ in 0..10_000 {
        b.leaf(task, leaf, 8, now, now + 40);
        now += 80;
    }
    b.finish();
    assert_eq!(times(source(&at, false))["leaf"].1, 10_000 * (40 - INSIDE));
}

#[test]
fn a_function_that_sometimes_returns_immediately_does_not_make_recording_look_slow() {
    let (mut b, at) = builder("sometimes");
    b.info["costs"]["closest"] = json!(10.0);
    let leaf = b.function("leaf", 'T');
    let task = b.task(100, "start", 0, 1);
    let (mut now, mut total) = (100, 0);
    for call in 0..10_000 {
        let took = if call % 20 == 0 { 10 } else { 100 };
        b.leaf(task, leaf, 8, now, now + took);
        total += took;
        now += 300;
    }
    b.finish();
    assert_eq!(times(source(&at, false))["leaf"].1, total - 10_000 * INSIDE);
}

#[test]
fn traces_without_costs_are_not_corrected() {
    let at = calls("none", 10);
    let info = at.join("info.json");
    let mut value: Value =
        serde_json::from_slice(&std::fs::read(&info).expect("info")).expect("JSON");
    value.as_object_mut().expect("an object").remove("costs");
    std::fs::write(&info, value.to_string()).expect("written");
    assert_eq!(times(source(&at, false)), times(source(&at, true)));
}
