//! Damaged traces: nothing panics, nothing takes long, and everything before the damage is read.

use std::fs;
use std::path::{Path, PathBuf};

use hodo_trace::format::record::{ENTRY, EXIT};
use hodo_trace::testing::Builder;
use hodo_trace::{Record, Trace, TraceError};

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Writes two tasks, the first with three chunks.
fn build(directory: &Path) {
    let mut trace = Builder::new(directory, true);
    let f = trace.function("f", 'T');
    let g = trace.function("g", 'E');
    let first = trace.task(100, "start", 0, 10);
    let second = trace.task(101, "thread", 1, 20);
    for n in 0..10_000u64 {
        trace.leaf(first, f, n as u32, n * 10, n * 10 + 5);
    }
    trace.record(second, ENTRY, g, 1, 1 << 33);
    trace.leaf(second, f, 1, (1 << 33) + 1, (1 << 33) + 2);
    trace.end(second, (1 << 33) + 9);
    trace.end(first, 1 << 34);
    trace.finish();
}

fn records(trace: &Trace) -> Vec<Vec<Record>> {
    trace
        .tasks
        .iter()
        .map(|t| trace.records(t).collect())
        .collect()
}

#[test]
fn a_whole_trace_is_read() {
    let directory = place("whole");
    build(&directory);
    let trace = Trace::open(&directory).unwrap();
    assert_eq!(trace.damage, [""; 0]);
    let records = records(&trace);
    assert_eq!((records[0].len(), records[1].len()), (20_000, 3));
    assert_eq!(records[1][0].time, 1 << 33);
}

#[test]
fn unfinished_records_are_skipped() {
    let directory = place("unfinished");
    let mut trace = Builder::new(&directory, true);
    let f = trace.function("f", 'T');
    let task = trace.task(100, "start", 0, 10);
    trace.leaf(task, f, 1, 20, 30);
    // An entry with only its time, and an empty word.
    trace.word(task, 40);
    trace.word(task, 0);
    trace.leaf(task, f, 1, 50, 60);
    trace.finish();
    let trace = Trace::open(&directory).expect("a trace");
    let times: Vec<u64> = records(&trace)[0]
        .iter()
        .map(|record| record.time)
        .collect();
    assert_eq!(times, [20, 30, 50, 60]);
}

#[test]
fn a_truncated_trace_is_read_up_to_its_end() {
    let directory = place("truncated");
    build(&directory);
    let events = directory.join("events");
    let file = fs::OpenOptions::new().write(true).open(&events).unwrap();
    // One whole chunk, and 100 records of the second.
    file.set_len(4096 + (64 << 10) + 64 + 800).unwrap();
    let trace = Trace::open(&directory).unwrap();
    assert!(
        trace.damage.iter().any(|d| d.contains("ends early")),
        "{:?}",
        trace.damage
    );
    let records = records(&trace);
    assert_eq!(records[0].len(), (65536 - 64) / 8 + 100);
    assert_eq!(records[0][8184 + 99].kind, hodo_trace::RecordKind::Exit);
}

#[test]
fn a_trace_that_ends_in_its_last_chunk_is_reported_to_end_early() {
    let directory = place("last");
    build(&directory);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(directory.join("events"))
        .unwrap();
    file.set_len(file.metadata().unwrap().len() - 65536 + 64 + 8)
        .unwrap();
    let trace = Trace::open(&directory).unwrap();
    let [damage] = &trace.damage[..] else {
        panic!("{:?}", trace.damage);
    };
    assert!(
        damage.ends_with("ends early: 1 of 4 chunks of records are missing or not whole"),
        "{damage}"
    );
    assert_eq!(records(&trace)[1].len(), 1);
}

#[test]
fn an_overwritten_chunk_ends_its_task_and_no_other() {
    let directory = place("overwritten");
    build(&directory);
    let path = directory.join("events");
    let mut events = fs::read(&path).unwrap();
    events[4096 + (64 << 10)..][..64].fill(0xAA);
    fs::write(&path, events).unwrap();
    let trace = Trace::open(&directory).unwrap();
    assert_eq!(trace.damage.len(), 2, "{:?}", trace.damage);
    let records = records(&trace);
    assert_eq!((records[0].len(), records[1].len()), ((65536 - 64) / 8, 3));
}

#[test]
fn a_log_cut_in_the_middle_of_a_line_is_read_up_to_it() {
    let directory = place("log");
    build(&directory);
    let path = directory.join("log.jsonl");
    let log = fs::read_to_string(&path).unwrap();
    fs::write(&path, &log[..log.find("task_end").unwrap() + 3]).unwrap();
    let trace = Trace::open(&directory).unwrap();
    assert_eq!(trace.damage.len(), 1, "{:?}", trace.damage);
    assert_eq!(trace.tasks.len(), 2);
    assert_eq!(trace.tasks[1].ended, None);
}

#[test]
fn other_versions_and_formats_are_refused() {
    let directory = place("version");
    let change = |key: &str, value: serde_json::Value| {
        let mut trace = Builder::new(&directory, true);
        trace.info[key] = value;
        trace.finish();
        Trace::open(&directory).unwrap_err()
    };
    let error = change("version", 2.into());
    assert!(
        matches!(error, TraceError::Version { found: 2, .. }),
        "{error}"
    );
    let error = change("format", "else".into());
    assert!(matches!(error, TraceError::Damaged { .. }), "{error}");

    build(&directory);
    let path = directory.join("events");
    let mut events = fs::read(&path).unwrap();
    events[8] = 9;
    fs::write(&path, &events).unwrap();
    let error = Trace::open(&directory).unwrap_err();
    assert!(
        matches!(error, TraceError::Version { found: 9, .. }),
        "{error}"
    );
    events[0] = 0;
    fs::write(&path, &events).unwrap();
    let error = Trace::open(&directory).unwrap_err();
    assert!(matches!(error, TraceError::Damaged { .. }), "{error}");
    assert!(matches!(
        Trace::open(place("nowhere")).unwrap_err(),
        TraceError::Missing(_)
    ));
}

#[test]
fn random_damage_does_no_harm() {
    let directory = place("random");
    // A small trace, so that many changes can be tried.
    let mut trace = Builder::new(&directory, true);
    let f = trace.function("f", 'T');
    trace.function("g", 'E');
    let task = trace.task(100, "start", 0, 10);
    let child = trace.task(101, "fork", 1, 500);
    for n in 0..200 {
        trace.record(
            task,
            if n % 3 == 0 { EXIT } else { ENTRY },
            f,
            n,
            u64::from(n) << 30,
        );
        trace.leaf(child, f, n, u64::from(n), u64::from(n));
    }
    trace.end(child, 1 << 40);
    trace.finish();
    let mut seed = 0x1357_9BDF_0246_8ACEu64;
    let mut below = move |n: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as usize % n
    };
    let files = ["info.json", "log.jsonl", "module-0.sym", "events"];
    let whole: Vec<Vec<u8>> = files.map(|f| fs::read(directory.join(f)).unwrap()).into();
    let mut opened = 0;
    for _ in 0..1000 {
        let which = below(files.len());
        let mut bytes = whole[which].clone();
        for _ in 0..1 + below(4) {
            // In the file of records, most changes are made where there is data.
            let near = if which == 3 && below(4) > 0 {
                [64, 4096, 4096 + 64 + 1700, 4096 + 65536][below(4)] + 64
            } else {
                bytes.len()
            };
            let at = below(near.min(bytes.len()).max(1));
            match below(5) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => {
                    bytes.remove(at);
                }
                2 => bytes.insert(at.min(bytes.len()), below(256) as u8),
                _ if at < bytes.len() => bytes[at] = [below(256) as u8, 0, 0xFF, b'9'][below(4)],
                _ => {}
            }
        }
        let path = directory.join(files[which]);
        fs::write(&path, &bytes).unwrap();
        if let Ok(trace) = Trace::open(&directory) {
            opened += 1;
            let inherited = trace.inherited();
            for (task, frames) in trace.tasks.iter().zip(inherited) {
                let mut calls = trace.calls(frames);
                let mut time = 0;
                for record in trace.records(task) {
                    assert!(record.time >= time);
                    time = record.time;
                    let _ = trace.nanoseconds(time);
                    calls.feed(record, |_| ());
                }
            }
        }
        fs::write(&path, &whole[which]).unwrap();
    }
    assert!(opened > 200, "only {opened} were opened");
}
