//! `replay`: the calls in the order of time, as a C program's text.

use std::io::Write;

use anyhow::{Result, bail};
use hodo_trace::{Left, Step};

use crate::format::{Color, duration, timestamp};
use crate::source::{Source, SourceOptions};
use crate::stream::Merged;

/// What `replay` shows.
#[derive(Debug, Clone)]
pub struct ReplayOptions {
    /// Which trace, and what of it.
    pub source: SourceOptions,
    /// `-f`: names of columns, separated by commas; `none`, `all`; with a `+` in front: beside the usual ones.
    pub fields: Option<String>,
    /// `--flat`.
    pub flat: bool,
    /// Names behind closing braces.
    pub comments: bool,
    /// A call without calls in it is one line.
    pub merge: bool,
    /// `--column-view`: tasks beside each other.
    pub column_view: bool,
    /// `--column-offset`.
    pub column_offset: usize,
    /// `--task-newline`.
    pub task_newline: bool,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            source: SourceOptions::default(),
            fields: None,
            flat: false,
            comments: true,
            merge: true,
            column_view: false,
            column_offset: 8,
            task_newline: false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Duration,
    Tid,
    Addr,
    Time,
    Delta,
    Elapsed,
    Task,
    Module,
}

/// Name, heading, of each field, in the order in which they are shown.
const FIELDS: [(Field, &str, &str); 8] = [
    (Field::Duration, "duration", " DURATION "),
    (Field::Tid, "tid", "   TID  "),
    (Field::Addr, "addr", "   ADDRESS  "),
    (Field::Time, "time", "     TIMESTAMP    "),
    (Field::Delta, "delta", " TIMEDELTA"),
    (Field::Elapsed, "elapsed", "  ELAPSED "),
    (Field::Task, "task", "      TASK NAME"),
    (Field::Module, "module", "     MODULE NAME"),
];

fn fields(options: &ReplayOptions) -> Result<Vec<Field>> {
    let usual = [Field::Duration, Field::Tid];
    let ranged = options.source.range.is_some();
    let (plus, names) = match options.fields.as_deref() {
        None => (true, ""),
        Some(text) => match text.strip_prefix('+') {
            Some(rest) => (true, rest),
            None => (false, text),
        },
    };
    let mut chosen = Vec::new();
    for name in names.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        match name {
            "none" => return Ok(Vec::new()),
            "all" => chosen.extend(FIELDS.map(|f| f.0)),
            _ => match FIELDS.iter().find(|f| f.1 == name) {
                Some(field) => chosen.push(field.0),
                None => bail!(
                    "there is no field {name:?}; there are {}, all, none",
                    FIELDS.map(|f| f.1).join(", ")
                ),
            },
        }
    }
    if plus {
        chosen.extend(usual);
    }
    let mut fields: Vec<_> = FIELDS
        .iter()
        .map(|f| f.0)
        .filter(|f| chosen.contains(f))
        .collect();
    if ranged && options.fields.is_none() {
        fields.insert(0, Field::Time);
    }
    Ok(fields)
}

/// Calls deeper than this are not indented further: the text of a recursion would grow with the square of its depth.
const DEEPEST: usize = 256;

struct Line<'a> {
    duration: Option<u64>,
    time: u64,
    id: Option<u32>,
    task: usize,
    depth: usize,
    text: std::fmt::Arguments<'a>,
}

struct Printer<'a> {
    source: &'a Source,
    options: &'a ReplayOptions,
    fields: Vec<Field>,
    color: Color,
    first: Option<u64>,
    previous: Option<u64>,
    last_task: Option<usize>,
    prefix: String,
}

impl Printer<'_> {
    fn header(&self, out: &mut dyn Write) -> Result<()> {
        if !self.fields.is_empty() {
            let titles: Vec<_> = self
                .fields
                .iter()
                .map(|field| FIELDS.iter().find(|f| f.0 == *field).map_or("", |f| f.2))
                .collect();
            writeln!(out, "#{}   FUNCTION", titles.join(" "))?;
        }
        Ok(())
    }

    fn line(&mut self, out: &mut dyn Write, line: Line<'_>) -> Result<()> {
        let task = self.source.task(self.source.tasks[line.task]);
        if self.options.task_newline && self.last_task.is_some_and(|last| last != line.task) {
            let width: usize = self
                .fields
                .iter()
                .map(|field| {
                    1 + FIELDS
                        .iter()
                        .find(|f| f.0 == *field)
                        .map_or(0, |f| f.2.len())
                })
                .sum();
            writeln!(out, "{:width$} | ", "")?;
        }
        self.last_task = Some(line.task);
        let timed = self.source.timed();
        let ns = self.source.scale.nanoseconds(line.time);
        let first = *self.first.get_or_insert(ns);
        self.prefix.clear();
        for field in &self.fields {
            self.prefix.push(' ');
            let text = match field {
                Field::Duration => duration(line.duration.unwrap_or(0), self.color),
                Field::Tid => format!("[{:6}]", task.tid),
                Field::Addr => {
                    let function = line.id.and_then(|id| self.source.trace.function(id));
                    let addr = function.map(|f| format!("{:x}", f.addr));
                    format!("{:>12}", addr.unwrap_or_default())
                }
                Field::Time if timed => format!("{:>18}", timestamp(ns)),
                Field::Time => " ".repeat(18),
                Field::Delta => duration(
                    self.previous
                        .map_or(0, |previous| ns.saturating_sub(previous)),
                    self.color,
                ),
                Field::Elapsed => duration(ns.saturating_sub(first), self.color),
                Field::Task => format!("{:>15}", task.comm),
                Field::Module => {
                    let function = line.id.and_then(|id| self.source.trace.function(id));
                    let module = function.map(|f| self.source.trace.modules[f.module].name());
                    format!("{:>16}", module.unwrap_or_default())
                }
            };
            self.prefix.push_str(&text);
        }
        if !self.fields.is_empty() {
            self.prefix.push_str(" | ");
        }
        self.previous = Some(ns);
        let column = if self.options.column_view {
            line.task * self.options.column_offset
        } else {
            0
        };
        let depth = line.depth.min(DEEPEST);
        let indent = column + depth * 2;
        out.write_all(self.prefix.as_bytes())?;
        write!(out, "{:indent$}", "")?;
        if line.depth > depth {
            write!(out, "/* depth {} */ ", line.depth)?;
        }
        writeln!(out, "{}", line.text)?;
        Ok(())
    }
}

/// Writes the calls of a trace.
///
/// # Errors
/// If the trace cannot be read, an option is malformed, or `out` cannot be written.
pub fn replay(options: &ReplayOptions, out: &mut dyn Write) -> Result<()> {
    let fields = fields(options)?;
    let source = Source::open(&options.source)?;
    if options.flat {
        return flat(&source, out);
    }
    let color = Color(options.source.color);
    let mut printer = Printer {
        source: &source,
        options,
        fields,
        color,
        first: None,
        previous: None,
        last_task: None,
        prefix: String::new(),
    };
    printer.header(out)?;
    let (from, to) = source.range;
    let timed = source.timed();
    let mut merged = Merged::new(&source);
    while let Some((task, step)) = merged.next() {
        let time = step.time();
        let ns = source.scale.nanoseconds(time);
        if timed && ns > to {
            break;
        }
        if timed && ns < from {
            continue;
        }
        let line = |duration, time, id, depth| Line {
            duration,
            time,
            id: Some(id),
            task,
            depth,
            text: format_args!(""),
        };
        match step {
            Step::Enter { depth, id, time } => {
                let name = source.label(id);
                if options.merge
                    && let Some((
                        next,
                        Step::Leave {
                            depth: d,
                            frame,
                            time: end,
                            left: Left::Returned,
                        },
                    )) = merged.peek()
                    && next == task
                    && d == depth
                    && frame.id == id
                {
                    merged.next();
                    let took = source.scale.nanoseconds(end) - source.scale.nanoseconds(time);
                    let base = line(timed.then_some(took), time, id, depth);
                    printer.line(
                        out,
                        Line {
                            text: format_args!("{name}();"),
                            ..base
                        },
                    )?;
                    continue;
                }
                let base = line(None, time, id, depth);
                printer.line(
                    out,
                    Line {
                        text: format_args!("{name}() {{"),
                        ..base
                    },
                )?;
            }
            Step::Instant { depth, id, time } => {
                let name = source.label(id);
                let base = line(None, time, id, depth);
                printer.line(
                    out,
                    Line {
                        text: format_args!("{name}();"),
                        ..base
                    },
                )?;
            }
            Step::Leave {
                depth,
                frame,
                time,
                left,
            } => {
                let took = source
                    .scale
                    .nanoseconds(time)
                    .saturating_sub(source.scale.nanoseconds(frame.start));
                let took = (timed && !frame.inherited).then_some(took);
                let base = line(took, time, frame.id, depth);
                let name = source.label(frame.id);
                let how = if left == Left::Tail {
                    ", tail call"
                } else {
                    ""
                };
                let comment = if options.comments {
                    color.gray(&format!(" /* {name}{how} */"))
                } else {
                    String::new()
                };
                printer.line(
                    out,
                    Line {
                        text: format_args!("}}{comment}"),
                        ..base
                    },
                )?;
            }
            Step::Lost { count, time } => {
                let depth = merged.streams()[task].open().len();
                let text = color.gray(&format!("/* LOST {count} records */"));
                let base = line(None, time, 0, depth);
                printer.line(
                    out,
                    Line {
                        id: None,
                        text: format_args!("{text}"),
                        ..base
                    },
                )?;
            }
        }
    }
    remaining(&source, &merged, out)
}

/// The frames that were open at the end.
fn remaining(source: &Source, merged: &Merged<'_>, out: &mut dyn Write) -> Result<()> {
    let mut any = false;
    for (at, stream) in merged.streams().iter().enumerate() {
        let open = stream.open();
        let task = source.task(source.tasks[at]);
        // A program that was replaced by another one has not stopped in its functions.
        let replaced = source
            .trace
            .tasks
            .iter()
            .any(|other| other.kind == "exec" && other.parent == task.id);
        if open.is_empty() || replaced {
            continue;
        }
        if !any {
            writeln!(out, "\nhodo stopped tracing with remaining functions")?;
            writeln!(out, "=============================================")?;
            any = true;
        }
        writeln!(out, "task: {}", task.tid)?;
        for (depth, (id, _)) in open.iter().enumerate().rev() {
            writeln!(out, "[{depth}] {}", source.label(*id))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// `--flat`: a line for each entry and exit.
fn flat(source: &Source, out: &mut dyn Write) -> Result<()> {
    let (from, to) = source.range;
    for (number, (task, step)) in Merged::new(source).enumerate() {
        let tid = source.task(source.tasks[task]).tid;
        let ns = source.scale.nanoseconds(step.time());
        if source.timed() && !(from..=to).contains(&ns) {
            continue;
        }
        match step {
            Step::Enter { depth, id, .. } | Step::Instant { depth, id, .. } => {
                let name = source.label(id);
                writeln!(
                    out,
                    "[{number}] ==> {tid}/{depth}: ip ({name}), time ({ns})"
                )?;
            }
            Step::Leave { depth, frame, .. } => {
                let name = source.label(frame.id);
                let took = ns.saturating_sub(source.scale.nanoseconds(frame.start));
                writeln!(
                    out,
                    "[{number}] <== {tid}/{depth}: ip ({name}), time ({ns}:{took})"
                )?;
            }
            Step::Lost { count, .. } => {
                writeln!(
                    out,
                    "[{number}] XXX {tid}: lost {count} records, time ({ns})"
                )?;
            }
        }
    }
    Ok(())
}
