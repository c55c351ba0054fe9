//! Reading a trace while it is being written.

use std::path::Path;
use std::time::Duration;

use hodo_trace::follow::{Follow, Reached};
use hodo_trace::format::record::{self, ENTRY};
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
