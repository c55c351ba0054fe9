//! Reading a trace while it is being written.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use hodo_trace::Trace;
use hodo_trace::follow::{Follow, Reached};
use hodo_trace::format::record::{self, ENTRY};
use hodo_trace::format::{CHUNK_HEADER_SIZE, RECORD_SIZE, chunk_header, file_header};
use hodo_trace::testing::Builder;

/// Returns the head of a payload of this many words.
fn head(words: u64) -> u64 {
    let special = record::SPECIAL_PAYLOAD | record::SPECIAL << record::KIND_SHIFT;
    u64::from(special) << 32 | words
}

#[test]
fn an_unfinished_record_does_not_block_others() {
    let at = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let at = at.join(format!("follow-{}", std::process::id()));
    let mut b = Builder::new(&at, true);
    let id = b.function("probe", 'B');
    let task = b.task(100, "start", 0, 1);
    b.record(task, ENTRY, id, 0, 10);
    for time in [20, 30] {
        // A handler jumped out of the code that was about to write the first word.
        b.word(task, 0);
        b.word(task, head(2));
        b.word(task, 1);
        b.word(task, 2);
        b.record(task, ENTRY, id, 0, time);
    }
    b.finish();

    let (mut trace, mut follow) = Follow::open(&at).expect("a trace");
    follow.news(&mut trace);
    let take = |follow: &mut Follow| {
        let mut times = Vec::new();
        let reached = follow.take(&trace, 0, 16, |record, _| times.push(record.time));
        (times, reached)
    };
    // The word may still come.
    follow.set_patience(Duration::MAX);
    assert_eq!(take(&mut follow), (vec![10], Reached::Busy(10)));
    assert_eq!(take(&mut follow), (vec![], Reached::Busy(10)));
    follow.set_patience(Duration::ZERO);
    // Each incomplete record is waited for separately.
    assert_eq!(take(&mut follow), (vec![20], Reached::Busy(20)));
    assert_eq!(take(&mut follow), (vec![30], Reached::End));
    assert_eq!(take(&mut follow), (vec![], Reached::End));
}

#[test]
fn what_ended_tasks_have_left_is_found_however_many_ended_since() {
    let at = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let at = at.join(format!("rests-{}", std::process::id()));
    let mut b = Builder::new(&at, true);
    let id = b.function("probe", 'B');
    for tid in 100..103 {
        let task = b.task(tid, "thread", 0, 1);
        b.end(task, 2);
    }
    b.record(1, ENTRY, id, 0, 10);
    b.finish();
    let mut options = OpenOptions::new();
    let events = options.read(true).write(true);
    let events = events.open(at.join("events")).expect("events");
    let mut word = [0; 8];
    events
        .read_exact_at(&mut word, file_header::CONTROL_SIZE)
        .expect("a header");
    let chunk = u64::from_le_bytes(word);
    let mut header = [0; (CHUNK_HEADER_SIZE + RECORD_SIZE) as usize];
    events.read_exact_at(&mut header, chunk).expect("a chunk");
    for task in 1..3u32 {
        // The chunk of the next task follows this one's only record.
        let (own, next) = (u64::from(task - 1) * 128, u64::from(task) * 128);
        let mut put = |place: u64, value: u32| {
            header[place as usize..][..4].copy_from_slice(&value.to_le_bytes());
        };
        put(chunk_header::TASK, task + 1);
        put(CHUNK_HEADER_SIZE, 10 + task);
        let write = |bytes: &[u8], place| events.write_all_at(bytes, chunk + place);
        write(&header, next).expect("events");
        write(&(next as u32).to_le_bytes(), own + chunk_header::REST).expect("events");
    }

    let (mut trace, mut follow) = Follow::open(&at).expect("a trace");
    follow.news(&mut trace);
    for task in 0..3 {
        let mut times = Vec::new();
        follow.take(&trace, task, 16, |record, _| times.push(record.time));
        assert_eq!(times, [10 + task as u64], "{task}");
    }
    let trace = Trace::open(&at).expect("a trace");
    for (task, time) in trace.tasks.iter().zip(10..) {
        let times: Vec<u64> = trace.records(task).map(|record| record.time).collect();
        assert_eq!(times, [time]);
    }
}
