//! `report`: where the time went, by function or by task.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, bail};
use hodo_trace::{Frame, Step};
use serde_json::json;

use crate::filter::Gate;
use crate::format::{Color, duration};
use crate::source::{Source, SourceOptions};

/// The form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReportFormat {
    /// A table.
    #[default]
    Text,
    /// A list of objects.
    Json,
}

/// What `report` shows.
#[derive(Debug, Clone, Default)]
pub struct ReportOptions {
    /// Which trace, and what of it.
    pub source: SourceOptions,
    /// `-s`: columns to sort by, separated by commas.
    pub sort: Option<String>,
    /// `--task`: by task.
    pub task: bool,
    /// `--avg-total`.
    pub avg_total: bool,
    /// `--avg-self`.
    pub avg_self: bool,
    /// `-f`: names of columns, separated by commas; `all`.
    pub fields: Option<String>,
    /// Text or JSON.
    pub format: ReportFormat,
}

/// Minimum, maximum and sum of durations in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Times {
    sum: u64,
    min: u64,
    max: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }
}

impl Times {
    #[inline]
    fn add(&mut self, value: u64, counts: bool) {
        if counts {
            self.sum += value;
        }
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    fn join(&mut self, other: &Self) {
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

/// What is known of a function, in units of the counter.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    calls: u64,
    total: Times,
    own: Times,
    /// Open frames of this function in the task that is being read.
    open: u32,
}

#[derive(Debug, Clone, Default)]
struct Tally {
    functions: Vec<Entry>,
    lost: u64,
}

/// A frame that is shown: when it began, and the time its callees took.
#[derive(Debug, Clone, Copy)]
struct Open {
    id: u32,
    start: u64,
    children: u64,
    inherited: bool,
}

impl Tally {
    fn new(functions: usize) -> Self {
        Self {
            functions: vec![Entry::default(); functions],
            lost: 0,
        }
    }

    fn join(&mut self, other: &Self) {
        self.lost += other.lost;
        for (a, b) in self.functions.iter_mut().zip(&other.functions) {
            a.calls += b.calls;
            a.total.join(&b.total);
            a.own.join(&b.own);
        }
    }

    #[inline]
    fn enter(&mut self, stack: &mut Vec<Open>, id: u32, time: u64) {
        if let Some(entry) = self.functions.get_mut(id as usize) {
            entry.open += 1;
        }
        stack.push(Open {
            id,
            start: time,
            children: 0,
            inherited: false,
        });
    }

    #[inline]
    fn leave(&mut self, stack: &mut Vec<Open>, time: u64) {
        let Some(frame) = stack.pop() else { return };
        let took = time.saturating_sub(frame.start);
        if let Some(parent) = stack.last_mut() {
            parent.children += took;
        }
        let Some(entry) = self.functions.get_mut(frame.id as usize) else {
            return;
        };
        entry.open -= entry.open.min(1);
        if frame.inherited {
            return;
        }
        entry.calls += 1;
        // Of a recursion, the outermost call has the time of all.
        entry.total.add(took, entry.open == 0);
        entry.own.add(took.saturating_sub(frame.children), true);
    }

    #[inline]
    fn step(&mut self, stack: &mut Vec<Open>, step: Step) {
        match step {
            Step::Enter { id, time, .. } => self.enter(stack, id, time),
            Step::Leave { time, .. } => self.leave(stack, time),
            Step::Instant { id, time, .. } => {
                self.enter(stack, id, time);
                self.leave(stack, time);
            }
            Step::Lost { count, .. } => self.lost += count,
        }
    }
}

/// Counts one task. Returns when its frames that were open at its end were left: then.
fn count(source: &Source, index: usize, tally: &mut Tally) {
    for entry in &mut tally.functions {
        entry.open = 0;
    }
    let task = source.task(index);
    let frames = source.inherited[index].clone();
    let mut stack: Vec<Open> = Vec::new();
    let mut open = |frame: &Frame| {
        stack.push(Open {
            id: frame.id,
            start: frame.start,
            children: 0,
            inherited: true,
        });
    };
    let mut calls = source.trace.calls(frames.clone());
    let mut last = task.began;
    let ranged = source.range != (0, u64::MAX) && source.timed();
    if source.table.is_open() && !ranged {
        frames.iter().for_each(&mut open);
        for record in source.trace.records(task) {
            last = record.time;
            calls.feed(record, |step| tally.step(&mut stack, step));
        }
    } else {
        let mut gate = Gate::new(&source.table, &frames);
        frames
            .iter()
            .zip(gate.shown())
            .filter(|(_, shown)| *shown)
            .for_each(|(frame, _)| open(frame));
        let (from, to) = source.range;
        for record in source.trace.records(task) {
            last = record.time;
            let ns = source.scale.nanoseconds(record.time);
            if ranged && ns > to {
                break;
            }
            calls.feed(record, |step| {
                gate.pass(&source.table, &source.scale, step, |step| {
                    tally.step(&mut stack, step);
                });
            });
            if ranged && ns < from {
                // What began before counts from there on only if it began inside: forget it.
                for entry in &mut tally.functions {
                    *entry = Entry {
                        open: entry.open,
                        ..Entry::default()
                    };
                }
            }
        }
        let end = task.ended.unwrap_or(last).max(last);
        gate.finish(&source.table, &source.scale, end, |step| {
            tally.step(&mut stack, step)
        });
    }
    let end = task
        .ended
        .filter(|_| source.timed())
        .unwrap_or(last)
        .max(last);
    while !stack.is_empty() {
        tally.leave(&mut stack, end);
    }
}

/// Counts all tasks that are shown, on all processors; one tally for each task with `apart`.
fn tallies(source: &Source, apart: bool) -> Vec<Tally> {
    let size = source.trace.functions.len();
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    // Long tasks first, so that none is left for the end.
    let mut order: Vec<_> = (0..source.tasks.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(source.task(source.tasks[at]).chunks.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(source.tasks.len()) {
            scope.spawn(|| {
                let mut sum = Tally::new(size);
                while let Some(&at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut tally = Tally::new(size);
                    count(source, source.tasks[at], &mut tally);
                    if apart {
                        results.lock().expect("no panics").push((at, tally));
                    } else {
                        sum.join(&tally);
                    }
                }
                if !apart {
                    results.lock().expect("no panics").push((0, sum));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no panics");
    if apart {
        results.sort_by_key(|(at, _)| *at);
        return results.into_iter().map(|(_, tally)| tally).collect();
    }
    let mut all = Tally::new(size);
    for (_, tally) in &results {
        all.join(tally);
    }
    vec![all]
}

/// A line of the report; times in nanoseconds.
#[derive(Debug, Clone)]
struct Row {
    name: String,
    module: String,
    size: u64,
    calls: u64,
    total: Times,
    own: Times,
}

/// The functions by name: those of the same name in one module are one line.
fn rows(source: &Source, tally: &Tally) -> Vec<Row> {
    let mut rows: std::collections::HashMap<(&str, usize), Row> = std::collections::HashMap::new();
    for (id, entry) in tally.functions.iter().enumerate() {
        let Some(function) = source.trace.functions[id].as_ref() else {
            continue;
        };
        if entry.calls == 0 {
            continue;
        }
        let row = rows
            .entry((source.label(id as u32), function.module))
            .or_insert_with(|| Row {
                name: source.label(id as u32).to_owned(),
                module: source.trace.modules[function.module].path.clone(),
                size: function.size,
                calls: 0,
                total: Times::default(),
                own: Times::default(),
            });
        row.calls += entry.calls;
        row.total.join(&entry.total);
        row.own.join(&entry.own);
    }
    let scale = |times: &mut Times| {
        // Durations of the counter, not points in time.
        *times = Times {
            sum: source.scale.duration(times.sum),
            min: source.scale.duration(times.min),
            max: source.scale.duration(times.max),
        };
    };
    let mut rows: Vec<_> = rows.into_values().collect();
    for row in &mut rows {
        scale(&mut row.total);
        scale(&mut row.own);
    }
    rows
}

/// A column: name, heading, width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Total,
    TotalAvg,
    TotalMin,
    TotalMax,
    Own,
    OwnAvg,
    OwnMin,
    OwnMax,
    Calls,
    Size,
}

const COLUMNS: [(Column, &str, &str); 10] = [
    (Column::Total, "total", "Total time"),
    (Column::TotalAvg, "total-avg", " Total avg"),
    (Column::TotalMin, "total-min", " Total min"),
    (Column::TotalMax, "total-max", " Total max"),
    (Column::Own, "self", " Self time"),
    (Column::OwnAvg, "self-avg", "  Self avg"),
    (Column::OwnMin, "self-min", "  Self min"),
    (Column::OwnMax, "self-max", "  Self max"),
    (Column::Calls, "call", "     Calls"),
    (Column::Size, "size", "      Size"),
];

fn value(row: &Row, column: Column) -> u64 {
    let average = |sum: u64| sum / row.calls.max(1);
    match column {
        Column::Total => row.total.sum,
        Column::TotalAvg => average(row.total.sum),
        Column::TotalMin => row.total.min,
        Column::TotalMax => row.total.max,
        Column::Own => row.own.sum,
        Column::OwnAvg => average(row.own.sum),
        Column::OwnMin => row.own.min,
        Column::OwnMax => row.own.max,
        Column::Calls => row.calls,
        Column::Size => row.size,
    }
}

fn columns(options: &ReportOptions) -> Result<Vec<Column>> {
    let Some(fields) = &options.fields else {
        return Ok(if options.avg_total {
            vec![Column::TotalAvg, Column::TotalMin, Column::TotalMax]
        } else if options.avg_self {
            vec![Column::OwnAvg, Column::OwnMin, Column::OwnMax]
        } else {
            vec![Column::Total, Column::Own, Column::Calls]
        });
    };
    let (mut chosen, fields) = match fields.strip_prefix('+') {
        Some(rest) => (vec![Column::Total, Column::Own, Column::Calls], rest),
        None => (Vec::new(), fields.as_str()),
    };
    for name in fields.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        match name {
            "all" => chosen.extend(COLUMNS.map(|c| c.0)),
            "none" => return Ok(Vec::new()),
            _ => match COLUMNS.iter().find(|c| c.1 == name) {
                Some(column) => chosen.push(column.0),
                None => bail!(
                    "there is no field {name:?}; there are {}, all, none",
                    COLUMNS.map(|c| c.1).join(", ")
                ),
            },
        }
    }
    Ok(COLUMNS
        .iter()
        .map(|c| c.0)
        .filter(|c| chosen.contains(c))
        .collect())
}

/// The keys of `-s`; `None` stands for the name.
fn keys(options: &ReportOptions) -> Result<Vec<Option<Column>>> {
    let usual = if options.avg_total {
        "total-avg"
    } else if options.avg_self {
        "self-avg"
    } else {
        "total"
    };
    let mut keys = Vec::new();
    for key in options.sort.as_deref().unwrap_or(usual).split(',') {
        let key = key.trim().replace('_', "-");
        // As in uftrace, `avg`, `min` and `max` mean the columns that are shown.
        let key = match key.as_str() {
            "avg" | "min" | "max" if options.avg_self => format!("self-{key}"),
            "avg" | "min" | "max" => format!("total-{key}"),
            _ => key,
        };
        match COLUMNS.iter().find(|c| c.1 == key) {
            Some(column) => keys.push(Some(column.0)),
            None if key == "func" || key == "name" => keys.push(None),
            None => bail!(
                "there is no sort key {key:?}; there are {}, func",
                COLUMNS.map(|c| c.1).join(", ")
            ),
        }
    }
    Ok(keys)
}

fn sort(rows: &mut [Row], keys: &[Option<Column>]) {
    rows.sort_by(|a, b| {
        for key in keys {
            let order = match key {
                Some(column) => value(b, *column).cmp(&value(a, *column)),
                None => a.name.cmp(&b.name),
            };
            if order.is_ne() {
                return order;
            }
        }
        a.name.cmp(&b.name).then_with(|| a.module.cmp(&b.module))
    });
}

/// Writes a report.
///
/// # Errors
/// If the trace cannot be read, an option is malformed, or `out` cannot be written.
pub fn report(options: &ReportOptions, out: &mut dyn Write) -> Result<()> {
    let columns = columns(options)?;
    let keys = keys(options)?;
    let source = Source::open(&options.source)?;
    if options.task {
        return by_task(&source, options, out);
    }
    let tally = tallies(&source, false).pop().unwrap_or_default();
    let mut rows = rows(&source, &tally);
    let lost = tally
        .lost
        .max(source.trace.info.finished.as_ref().map_or(0, |f| f.lost));
    if lost > 0 {
        eprintln!("hodo: {lost} records were lost: the figures are too low");
    }
    sort(&mut rows, &keys);
    if options.format == ReportFormat::Json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                json!({"name": row.name, "module": row.module, "calls": row.calls,
                       "total_ns": row.total.sum, "self_ns": row.own.sum})
            })
            .collect();
        serde_json::to_writer_pretty(&mut *out, &rows)?;
        writeln!(out)?;
        return Ok(());
    }
    let color = Color(options.source.color);
    for column in &columns {
        let title = COLUMNS.iter().find(|c| c.0 == *column).map_or("", |c| c.2);
        write!(out, "  {title}")?;
    }
    writeln!(out, "  Function")?;
    for _ in &columns {
        write!(out, "  ==========")?;
    }
    writeln!(out, "  ====================")?;
    for row in &rows {
        for &column in &columns {
            match column {
                Column::Calls | Column::Size => write!(out, "  {:10}", value(row, column))?,
                _ => write!(out, "  {}", duration(value(row, column), color))?,
            }
        }
        writeln!(out, "  {}", row.name)?;
    }
    Ok(())
}

/// `--task`: a line for each task.
fn by_task(source: &Source, options: &ReportOptions, out: &mut dyn Write) -> Result<()> {
    struct TaskRow<'a> {
        tid: i32,
        name: &'a str,
        total: u64,
        own: u64,
        functions: u64,
    }
    let mut rows: Vec<TaskRow<'_>> = tallies(source, true)
        .iter()
        .zip(&source.tasks)
        .map(|(tally, &index)| {
            let task = source.task(index);
            let own: u64 = tally.functions.iter().map(|entry| entry.own.sum).sum();
            TaskRow {
                tid: task.tid,
                name: &task.comm,
                total: source.scale.duration(own),
                own: source.scale.duration(own),
                functions: tally.functions.iter().map(|entry| entry.calls).sum(),
            }
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.total));
    match options.sort.as_deref() {
        None | Some("total") => {}
        Some("self") => rows.sort_by_key(|row| std::cmp::Reverse(row.own)),
        Some("tid") => rows.sort_by_key(|row| row.tid),
        Some("func") => rows.sort_by_key(|row| std::cmp::Reverse(row.functions)),
        Some("name") => rows.sort_by_key(|row| row.name),
        Some(other) => bail!(
            "there is no sort key {other:?} for tasks; there are total, self, tid, func, name"
        ),
    }
    if options.format == ReportFormat::Json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                json!({"tid": row.tid, "name": row.name, "calls": row.functions,
                       "total_ns": row.total, "self_ns": row.own})
            })
            .collect();
        serde_json::to_writer_pretty(&mut *out, &rows)?;
        writeln!(out)?;
        return Ok(());
    }
    let color = Color(options.source.color);
    writeln!(
        out,
        "  Total time   Self time     TID   Num funcs  Task name"
    )?;
    writeln!(
        out,
        "  ==========  ==========  ======  ==========  ===================="
    )?;
    for row in &rows {
        writeln!(
            out,
            "  {}  {}  {:6}  {:10}  {:<16}",
            duration(row.total, color),
            duration(row.own, color),
            row.tid,
            row.functions,
            row.name
        )?;
    }
    Ok(())
}
