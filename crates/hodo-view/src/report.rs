//! `report`: where time was spent, by function or by task.

use std::collections::HashMap;
use std::io::Write;

use anyhow::{Result, bail};
use hodo_trace::told_lost;
use serde_json::json;

use crate::costs::whole;
use crate::format::{Color, duration};
use crate::source::{Source, SourceOptions};
use crate::tally::{self, Tally, Times};

/// The output format.
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
    /// Which trace, and which part of it.
    pub source: SourceOptions,
    /// `-s`: columns to sort by, separated by commas.
    pub sort: Option<String>,
    /// `--task`: by task.
    pub task: bool,
    /// `--avg-total`.
    pub avg_total: bool,
    /// `--avg-self`.
    pub avg_self: bool,
    /// `-f`: names of columns, separated by commas, or `all`.
    pub fields: Option<String>,
    /// Text or JSON.
    pub format: ReportFormat,
}

/// A line of the report.
#[derive(Debug, Clone)]
struct Row {
    name: String,
    module: String,
    size: u64,
    calls: u64,
    total: Spans,
    own: Spans,
}

/// Times in nanoseconds; see [`Times`].
#[derive(Debug, Clone, Copy)]
struct Spans {
    sum: u64,
    all: u64,
    min: u64,
    max: u64,
}

/// The data of the functions in one line.
#[derive(Debug, Default)]
struct Line {
    size: u64,
    calls: u64,
    total: Times,
    own: Times,
}

impl Line {
    /// Ensures that a function takes at least as long as its own code, whatever was subtracted from both.
    fn heed_own(&mut self) {
        self.total.sum = self.total.sum.max(self.own.sum);
        self.total.all = self.total.all.max(self.own.all);
    }
}

/// Returns the functions by name. Functions of the same name share a line, as in uftrace; with `apart`, only if they
/// are in the same module.
fn rows(source: &Source, tally: &Tally, apart: bool) -> Vec<Row> {
    let mut lines: HashMap<(&str, usize), Line> = HashMap::new();
    let mut modules: HashMap<(&str, usize), usize> = HashMap::new();
    for (id, entry) in tally.functions.iter().enumerate() {
        let Some(function) = source.trace.functions[id].as_ref() else {
            continue;
        };
        if entry.calls == 0 {
            continue;
        }
        let name = source.label(id as u32);
        let key = (name, if apart { function.module } else { 0 });
        modules.entry(key).or_insert(function.module);
        let line = lines.entry(key).or_insert_with(|| Line {
            size: function.size,
            ..Line::default()
        });
        line.calls += entry.calls;
        line.total.join(&entry.total);
        line.own.join(&entry.own);
    }
    // These are durations of the counter, not points in time.
    let scaled = |parts: i64| source.scale.duration(whole(parts));
    let spans = |times: &Times| Spans {
        sum: scaled(times.sum),
        all: scaled(times.all),
        min: scaled(times.min),
        max: scaled(times.max),
    };
    let rows = lines.into_iter().map(|(key, mut line)| {
        if !source.costs().is_none() {
            line.heed_own();
        }
        Row {
            name: key.0.to_owned(),
            module: source.trace.modules[modules[&key]].path.clone(),
            size: line.size,
            calls: line.calls,
            total: spans(&line.total),
            own: spans(&line.own),
        }
    });
    rows.collect()
}

/// A column: its name, heading and width.
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
        Column::TotalAvg => average(row.total.all),
        Column::TotalMin => row.total.min,
        Column::TotalMax => row.total.max,
        Column::Own => row.own.sum,
        Column::OwnAvg => average(row.own.all),
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
                    "there is no field {name:?}; the fields are {}, all, none",
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

/// Returns the keys of `-s`. `None` is the name.
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
        // As in uftrace, `avg`, `min` and `max` refer to the columns that are shown.
        let key = match key.as_str() {
            "avg" | "min" | "max" if options.avg_self => format!("self-{key}"),
            "avg" | "min" | "max" => format!("total-{key}"),
            _ => key,
        };
        match COLUMNS.iter().find(|c| c.1 == key) {
            Some(column) => keys.push(Some(column.0)),
            None if key == "func" || key == "name" => keys.push(None),
            None => bail!(
                "there is no sort key {key:?}; the keys are {}, func",
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
    if options.task {
        return by_task(options, out);
    }
    let columns = columns(options)?;
    let keys = keys(options)?;
    let source = Source::open(&options.source)?;
    let tally = tally::by_function(&source);
    let mut rows = rows(&source, &tally, options.format == ReportFormat::Json);
    let lost = tally
        .lost
        .max(source.trace.info.finished.as_ref().map_or(0, |f| f.lost));
    if lost > 0 {
        let told = told_lost(lost, !source.trace.probes.is_empty());
        eprintln!("hodo: {told}: the figures are too low");
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
    if !columns.is_empty() {
        for column in &columns {
            let title = COLUMNS.iter().find(|c| c.0 == *column).map_or("", |c| c.2);
            write!(out, "  {title}")?;
        }
        writeln!(out, "  Function")?;
        for _ in &columns {
            write!(out, "  ==========")?;
        }
        writeln!(out, "  ====================")?;
    }
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

/// A column of `--task`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskColumn {
    Total,
    Own,
    Tid,
    Functions,
}

const TASK_COLUMNS: [(TaskColumn, &str, &str, &str); 4] = [
    (TaskColumn::Total, "total", "Total time", "=========="),
    (TaskColumn::Own, "self", " Self time", "=========="),
    (TaskColumn::Tid, "tid", "   TID", "======"),
    (TaskColumn::Functions, "func", " Num funcs", "=========="),
];

struct TaskRow<'a> {
    tid: i32,
    name: &'a str,
    /// Nanoseconds.
    time: u64,
    functions: u64,
}

fn task_columns(fields: Option<&str>) -> Result<Vec<TaskColumn>> {
    let Some(fields) = fields else {
        return Ok(TASK_COLUMNS.map(|c| c.0).to_vec());
    };
    let (mut chosen, fields) = match fields.strip_prefix('+') {
        Some(rest) => (TASK_COLUMNS.map(|c| c.0).to_vec(), rest),
        None => (Vec::new(), fields),
    };
    for name in fields.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        match name {
            "all" => chosen.extend(TASK_COLUMNS.map(|c| c.0)),
            "none" => return Ok(Vec::new()),
            _ => match TASK_COLUMNS.iter().find(|c| c.1 == name) {
                Some(column) => chosen.push(column.0),
                None => bail!(
                    "there is no field {name:?} of tasks; the fields are total, self, tid, func, all, none"
                ),
            },
        }
    }
    Ok(TASK_COLUMNS
        .iter()
        .map(|c| c.0)
        .filter(|c| chosen.contains(c))
        .collect())
}

fn sort_tasks(rows: &mut [TaskRow<'_>], keys: &str) -> Result<()> {
    for key in keys
        .split(',')
        .map(str::trim)
        .collect::<Vec<_>>()
        .iter()
        .rev()
    {
        match *key {
            "total" | "self" => rows.sort_by_key(|row| std::cmp::Reverse(row.time)),
            "tid" => rows.sort_by_key(|row| row.tid),
            "func" => rows.sort_by_key(|row| std::cmp::Reverse(row.functions)),
            "name" => rows.sort_by_key(|row| row.name),
            other => bail!(
                "there is no sort key {other:?} of tasks; the keys are total, self, tid, func, name"
            ),
        }
    }
    Ok(())
}

/// `--task`: writes a line for each task.
fn by_task(options: &ReportOptions, out: &mut dyn Write) -> Result<()> {
    let columns = task_columns(options.fields.as_deref())?;
    let keys = options.sort.as_deref().unwrap_or("total");
    sort_tasks(&mut [], keys)?;
    let source = Source::open(&options.source)?;
    let summaries = tally::by_task(&source);
    let mut rows: Vec<TaskRow<'_>> = Vec::new();
    // A thread that executed another program is one line, with the name that it had last.
    let threads = source.threads();
    let mut places: HashMap<usize, usize> = HashMap::new();
    for (summary, &index) in summaries.iter().zip(&source.tasks) {
        let task = source.task(index);
        let place = *places.entry(threads[index]).or_insert(rows.len());
        if place == rows.len() {
            rows.push(TaskRow {
                tid: task.tid,
                name: "",
                time: 0,
                functions: 0,
            });
        }
        let row = &mut rows[place];
        row.name = &task.comm;
        let time = source.scale.duration(summary.time);
        row.time = row.time.saturating_add(time);
        row.functions += summary.calls;
    }
    sort_tasks(&mut rows, keys)?;
    if options.format == ReportFormat::Json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                json!({"tid": row.tid, "name": row.name, "calls": row.functions,
                       "total_ns": row.time, "self_ns": row.time})
            })
            .collect();
        serde_json::to_writer_pretty(&mut *out, &rows)?;
        writeln!(out)?;
        return Ok(());
    }
    let color = Color(options.source.color);
    if !columns.is_empty() {
        let titles = || TASK_COLUMNS.iter().filter(|c| columns.contains(&c.0));
        for column in titles() {
            write!(out, "  {}", column.2)?;
        }
        writeln!(out, "  Task name")?;
        for column in titles() {
            write!(out, "  {}", column.3)?;
        }
        writeln!(out, "  ====================")?;
    }
    for row in &rows {
        for column in &columns {
            match column {
                TaskColumn::Total | TaskColumn::Own => {
                    write!(out, "  {}", duration(row.time, color))?
                }
                TaskColumn::Tid => write!(out, "  {:6}", row.tid)?,
                TaskColumn::Functions => write!(out, "  {:10}", row.functions)?,
            }
        }
        writeln!(out, "  {:<16}", row.name)?;
    }
    Ok(())
}
