//! A small trace with any changes to its files: reading ends without a panic, and yields no more records than there are
//! bytes.
#![no_main]

use hodo_trace::Trace;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let (directory, size) = hodo_fuzz::damaged(input);
    let Ok(trace) = Trace::open(directory) else {
        return;
    };
    let inherited = trace.inherited();
    for (n, task) in trace.tasks.iter().enumerate() {
        let mut calls = trace.calls(inherited.get(n).cloned().unwrap_or_default());
        let mut records = 0;
        let mut last = 0;
        for record in trace.records(task) {
            assert!(record.time >= last, "time runs backward");
            last = record.time;
            records += 1;
            calls.feed(record, |step| {
                let _ = trace.nanoseconds(step.time());
            });
        }
        assert!(records <= size / 8, "{records} records in {size} bytes");
    }
});
