//! The text of every view, byte for byte, for handmade traces. `HODO_BLESS=1` rewrites the expected files.

use std::path::{Path, PathBuf};

use hodo_trace::format::record::{ENTRY, EXIT, TAIL};
use hodo_trace::testing::Builder;
use hodo_view::{
    DumpFormat, DumpOptions, GraphOptions, InfoOptions, ReplayOptions, ReportFormat, ReportOptions,
    SourceOptions,
};

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("golden-{name}-{}", std::process::id()))
}

fn source(data: &Path) -> SourceOptions {
    SourceOptions {
        data: data.to_owned(),
        ..SourceOptions::default()
    }
}

fn check(name: &str, text: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("HODO_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read(&path).unwrap_or_default();
    assert!(
        text == expected,
        "{name} differs:\n{}",
        String::from_utf8_lossy(text)
    );
}

/// A trace with two threads and a forked child, a tail call, a recursion, a library call, an entry without an exit, and
/// an open frame.
fn sample(name: &str, timed: bool) -> PathBuf {
    let mut b = Builder::new(&directory(name), timed);
    let main = b.function("main", 'T');
    let work = b.function("_ZN2ns4workEi", 'T');
    let rec = b.function("rec", 'T');
    let last = b.function("last", 'T');
    let usleep = b.function("usleep", 'P');
    let vfork = b.function("vfork", 'p');
    let fork = b.function("fork", 'P');
    let wait = b.function("wait", 'P');
    let t = |ns: u64| if timed { 1_000_000 + ns } else { 0 };
    let one = b.task(100, "start", 0, 1_000_000);
    b.record(one, ENTRY, main, 90, t(0));
    b.record(one, ENTRY, work, 80, t(100));
    b.leaf(one, usleep, 70, t(200), t(1_500_200));
    b.record(one, EXIT, work, 80, t(1_500_300));
    for depth in 0..3 {
        b.record(
            one,
            ENTRY,
            rec,
            80 - depth,
            t(1_500_400 + u64::from(depth) * 10),
        );
    }
    for depth in (0..3).rev() {
        b.record(
            one,
            EXIT,
            rec,
            80 - depth,
            t(1_500_500 - u64::from(depth) * 10),
        );
    }
    let two = b.task(101, "thread", one, 2_600_000);
    b.record(two, ENTRY, work, 50, t(1_600_000));
    b.record(one, ENTRY, work, 80, t(1_600_100));
    b.record(one, TAIL, last, 80, t(1_600_200));
    b.record(two, EXIT, work, 50, t(1_600_300));
    b.record(one, EXIT, work, 80, t(1_600_400));
    b.record(one, ENTRY, vfork, 80, t(1_600_500));
    b.record(one, ENTRY, fork, 80, t(1_700_000));
    let three = b.task(102, "fork", one, 1_000_000 + 1_700_100);
    b.record(one, EXIT, fork, 80, t(1_700_200));
    b.record(three, EXIT, fork, 80, t(1_700_300));
    b.leaf(three, work, 80, t(1_700_400), t(1_700_900));
    b.leaf(one, wait, 80, t(1_700_350), t(1_800_000));
    b.record(one, ENTRY, work, 80, t(1_800_100));
    b.end(two, 1_000_000 + 1_700_000);
    b.end(three, 1_000_000 + 1_750_000);
    b.end(one, 1_000_000 + 2_000_000);
    b.finish()
}

fn run(view: impl FnOnce(&mut Vec<u8>) -> anyhow::Result<()>) -> Vec<u8> {
    let mut out = Vec::new();
    view(&mut out).unwrap();
    out
}

fn replay(data: &Path, change: impl FnOnce(&mut ReplayOptions)) -> Vec<u8> {
    let mut options = ReplayOptions {
        source: source(data),
        ..ReplayOptions::default()
    };
    change(&mut options);
    run(|out| hodo_view::replay(&options, out))
}

fn report(data: &Path, change: impl FnOnce(&mut ReportOptions)) -> Vec<u8> {
    let mut options = ReportOptions {
        source: source(data),
        ..ReportOptions::default()
    };
    change(&mut options);
    run(|out| hodo_view::report(&options, out))
}

fn graph(data: &Path, change: impl FnOnce(&mut GraphOptions)) -> Vec<u8> {
    let mut options = GraphOptions {
        source: source(data),
        ..GraphOptions::default()
    };
    change(&mut options);
    run(|out| hodo_view::graph(&options, out))
}

fn dump(data: &Path, format: DumpFormat) -> Vec<u8> {
    let options = DumpOptions {
        source: source(data),
        format,
        ..DumpOptions::default()
    };
    run(|out| hodo_view::dump(&options, out))
}

#[test]
fn replays() {
    let data = sample("replays", true);
    let words = |text: &str| vec![text.to_owned()];
    check("replay.txt", &replay(&data, |_| ()));
    check(
        "replay-color.txt",
        &replay(&data, |o| o.source.color = true),
    );
    check("replay-flat.txt", &replay(&data, |o| o.flat = true));
    check(
        "replay-filter-depth.txt",
        &replay(&data, |o| {
            o.source.filter = words("main");
            o.source.depth = Some(2);
        }),
    );
    check(
        "replay-notrace.txt",
        &replay(&data, |o| o.source.notrace = words("ns::work")),
    );
    check(
        "replay-time.txt",
        &replay(&data, |o| o.source.time_filter = Some(400)),
    );
    check(
        "replay-tid.txt",
        &replay(&data, |o| o.source.tids = vec![101]),
    );
    check(
        "replay-range.txt",
        &replay(&data, |o| {
            o.source.range = Some("1.5ms~1700us".parse().unwrap())
        }),
    );
    check(
        "replay-fields.txt",
        &replay(&data, |o| o.fields = Some("all".to_owned())),
    );
    check(
        "replay-none.txt",
        &replay(&data, |o| o.fields = Some("none".to_owned())),
    );
    check(
        "replay-plain.txt",
        &replay(&data, |o| {
            o.comments = false;
            o.merge = false;
            o.source.no_libcall = true;
        }),
    );
    check(
        "replay-columns.txt",
        &replay(&data, |o| {
            o.column_view = true;
            o.task_newline = true;
        }),
    );
    std::fs::remove_dir_all(data).unwrap();
}

#[test]
fn reports() {
    let data = sample("reports", true);
    check("report.txt", &report(&data, |_| ()));
    check("report-task.txt", &report(&data, |o| o.task = true));
    check(
        "report-call.txt",
        &report(&data, |o| o.sort = Some("call,func".to_owned())),
    );
    check(
        "report-avg-total.txt",
        &report(&data, |o| o.avg_total = true),
    );
    check("report-avg-self.txt", &report(&data, |o| o.avg_self = true));
    check(
        "report-all.txt",
        &report(&data, |o| o.fields = Some("all".to_owned())),
    );
    check(
        "report.json",
        &report(&data, |o| o.format = ReportFormat::Json),
    );
    check(
        "report-depth.txt",
        &report(&data, |o| o.source.depth = Some(1)),
    );
    std::fs::remove_dir_all(data).unwrap();
}

#[test]
fn graphs() {
    let data = sample("graphs", true);
    check("graph.txt", &graph(&data, |_| ()));
    check(
        "graph-all.txt",
        &graph(&data, |o| o.fields = Some("all".to_owned())),
    );
    check(
        "graph-function.txt",
        &graph(&data, |o| o.function = Some("ns::work".to_owned())),
    );
    check("graph-task.txt", &graph(&data, |o| o.task = true));
    std::fs::remove_dir_all(data).unwrap();
}

#[test]
fn dumps() {
    let data = sample("dumps", true);
    check("dump.txt", &dump(&data, DumpFormat::Raw));
    check("dump-folded.txt", &dump(&data, DumpFormat::FlameGraph));
    let chrome = dump(&data, DumpFormat::Chrome);
    check("dump-chrome.json", &chrome);
    let value: serde_json::Value = serde_json::from_slice(&chrome).unwrap();
    assert!(value["traceEvents"].as_array().unwrap().len() > 20);
    let svg = String::from_utf8(dump(&data, DumpFormat::Svg)).unwrap();
    assert!(svg.starts_with("<?xml") && svg.contains("ns::work"));
    std::fs::remove_dir_all(data).unwrap();
}

#[test]
fn without_time() {
    let data = sample("untimed", false);
    check("untimed-replay.txt", &replay(&data, |_| ()));
    check("untimed-report.txt", &report(&data, |_| ()));
    std::fs::remove_dir_all(data).unwrap();
}

#[test]
fn circumstances() {
    let data = sample("info", true);
    let options = InfoOptions {
        source: source(&data),
        ..InfoOptions::default()
    };
    let text = run(|out| hodo_view::info(&options, out));
    // How much space a small file takes depends on the file system.
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("# bytes"))
        .collect();
    check("info.txt", lines.join("\n").as_bytes());
    let json = run(|out| {
        hodo_view::info(
            &InfoOptions {
                json: true,
                ..options.clone()
            },
            out,
        )
    });
    let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(value["calls"], 14);
    assert_eq!(value["threads"], 3);
    assert_eq!(value["lost"], 0);
    std::fs::remove_dir_all(data).unwrap();
}
