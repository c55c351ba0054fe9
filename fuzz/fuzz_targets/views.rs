//! A small trace with any changes to its files: every view ends without a panic, and prints no more than is possible.
#![no_main]

use std::io::{self, Write};

use hodo_view::{
    DumpFormat, DumpOptions, GraphOptions, ReplayOptions, ReportOptions, SourceOptions,
};
use libfuzzer_sys::fuzz_target;

/// Counts what is written.
struct Counter(usize);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&which, input)) = input.split_first() else {
        return;
    };
    let (directory, size) = hodo_fuzz::damaged(input);
    let bit = |n: u8| which >> n & 1 == 1;
    let source = SourceOptions {
        data: directory.to_owned(),
        filter: if bit(3) {
            vec!["f".to_owned()]
        } else {
            Vec::new()
        },
        notrace: if bit(4) {
            vec!["g".to_owned()]
        } else {
            Vec::new()
        },
        depth: bit(5).then_some(1),
        time_filter: bit(6).then_some(3),
        ..SourceOptions::default()
    };
    let mut out = Counter(0);
    // An error is an answer.
    let _ = match which & 7 {
        0 => hodo_view::report(
            &ReportOptions {
                source,
                task: bit(7),
                ..ReportOptions::default()
            },
            &mut out,
        ),
        1 => hodo_view::graph(
            &GraphOptions {
                source,
                task: bit(7),
                ..GraphOptions::default()
            },
            &mut out,
        ),
        2 => hodo_view::replay(
            &ReplayOptions {
                source,
                flat: bit(7),
                ..ReplayOptions::default()
            },
            &mut out,
        ),
        3 => hodo_view::replay(
            &ReplayOptions {
                source,
                column_view: bit(7),
                ..ReplayOptions::default()
            },
            &mut out,
        ),
        4 => hodo_view::dump(
            &DumpOptions {
                source,
                format: DumpFormat::Chrome,
                ..DumpOptions::default()
            },
            &mut out,
        ),
        5 => hodo_view::dump(
            &DumpOptions {
                source,
                format: DumpFormat::FlameGraph,
                ..DumpOptions::default()
            },
            &mut out,
        ),
        6 => hodo_view::dump(
            &DumpOptions {
                source,
                ..DumpOptions::default()
            },
            &mut out,
        ),
        _ => hodo_view::graph(
            &GraphOptions {
                source,
                function: Some("g".to_owned()),
                ..GraphOptions::default()
            },
            &mut out,
        ),
    };
    // A record makes at most a few lines, each indented by the calls around it.
    assert!(out.0 <= 100_000 + size * size, "{} bytes of {size}", out.0);
});
