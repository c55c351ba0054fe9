//! Makes a large trace and times the views of it: `speed DIRECTORY [RECORDS [TASKS]]`. The trace is kept, and used again.

use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use hodo_trace::format::record::{ENTRY, EXIT};
use hodo_trace::testing::Builder;
use hodo_view::{
    DumpFormat, DumpOptions, GraphOptions, InfoOptions, ReplayOptions, ReportOptions, SourceOptions,
};

const FUNCTIONS: u32 = 500;
const DEEPEST: usize = 40;

/// Calls as an interpreter makes them: a few functions often, most of them small, a wandering depth.
fn make(directory: &Path, records: u64, tasks: u32) {
    let mut trace = Builder::new(directory, true);
    let functions: Vec<u32> = (0..FUNCTIONS)
        .map(|n| trace.function(&format!("function_{n}"), 'T'))
        .collect();
    let mut seed = 0x2545_F491_4F6C_DD1Du64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed >> 11
    };
    for task in 0..tasks {
        let kind = if task == 0 { "start" } else { "thread" };
        trace.task(100 + task as i32, kind, task.min(1), 0);
    }
    let mut stacks = vec![Vec::new(); tasks as usize];
    let mut time = 1 << 40;
    let mut task = 0;
    for number in 0..records {
        // Threads take turns.
        if number % 100 == 0 {
            task = (task + 1) % tasks;
        }
        let stack = &mut stacks[task as usize];
        time += 1 + random() % 50;
        let call = stack.is_empty() || stack.len() < DEEPEST && random() % 2 == 0;
        if call {
            // What is called from one place are always the same few functions: some 20,000 different stacks.
            let from: u32 = stack.last().copied().unwrap_or(0);
            let choice = if stack.len() < 6 {
                (random() % 3) as u32
            } else {
                0
            };
            let id = functions[((from * 7 + choice * 31 + 1) % FUNCTIONS) as usize];
            trace.record(task + 1, ENTRY, id, 1000 - stack.len() as u32 * 3, time);
            stack.push(id);
        } else if let Some(id) = stack.pop() {
            trace.record(task + 1, EXIT, id, 1000 - stack.len() as u32 * 3, time);
        }
    }
    trace.finish();
}

/// Counts what it is given.
#[derive(Debug)]
struct Sink(u64);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let directory = args.next().unwrap_or_else(|| "hodo.speed".to_owned());
    let records: u64 = args.next().map_or(Ok(50_000_000), |n| n.parse())?;
    let tasks: u32 = args.next().map_or(Ok(1), |n| n.parse())?;
    let only = args.next();
    let directory = Path::new(&directory);
    if !directory.join("info.json").exists() {
        make(directory, records, tasks);
    }
    let source = SourceOptions {
        data: directory.to_owned(),
        ..SourceOptions::default()
    };
    let time = |name: &str, view: &dyn Fn(&mut dyn Write) -> Result<()>| -> Result<()> {
        if only.as_ref().is_some_and(|only| only != name) {
            return Ok(());
        }
        let start = Instant::now();
        let mut out = io::BufWriter::with_capacity(1 << 16, Sink(0));
        view(&mut out)?;
        let bytes = out.into_inner()?.0;
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{name:14} {seconds:8.3} s  {:8.1} M records/s  {:6} MB out",
            records as f64 / seconds / 1e6,
            bytes >> 20
        );
        Ok(())
    };
    let s = || source.clone();
    time("report", &|out| {
        let source = s();
        hodo_view::report(
            &ReportOptions {
                source,
                ..Default::default()
            },
            out,
        )
    })?;
    time("report -t", &|out| {
        let mut source = s();
        source.time_filter = Some(200);
        hodo_view::report(
            &ReportOptions {
                source,
                ..Default::default()
            },
            out,
        )
    })?;
    time("graph", &|out| {
        let source = s();
        hodo_view::graph(
            &GraphOptions {
                source,
                ..Default::default()
            },
            out,
        )
    })?;
    time("info", &|out| {
        let source = s();
        hodo_view::info(
            &InfoOptions {
                source,
                ..Default::default()
            },
            out,
        )
    })?;
    time("flame graph", &|out| {
        let source = s();
        let format = DumpFormat::FlameGraph;
        hodo_view::dump(
            &DumpOptions {
                source,
                format,
                ..Default::default()
            },
            out,
        )
    })?;
    time("replay", &|out| {
        let source = s();
        hodo_view::replay(
            &ReplayOptions {
                source,
                ..Default::default()
            },
            out,
        )
    })?;
    time("chrome", &|out| {
        let source = s();
        let format = DumpFormat::Chrome;
        hodo_view::dump(
            &DumpOptions {
                source,
                format,
                ..Default::default()
            },
            out,
        )
    })?;
    Ok(())
}
