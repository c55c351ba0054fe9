//! `replay`: the calls in the order of time, written like a C program.

use std::collections::{HashMap, HashSet};
use std::io::Write;

use anyhow::{Result, bail};
use hodo_trace::{CallStep, Entered, Left};

use crate::callers::Addresses;
use crate::events::comment;
use crate::filter::check_pattern;
use crate::format::{Color, printable, push_duration, timestamp};
use crate::pattern::Match;
use crate::source::{Moment, Source, SourceOptions};
use crate::stream::{Merged, open_at_first};

/// What `replay` shows.
#[derive(Debug, Clone)]
pub struct ReplayOptions {
    /// Which trace, and which part of it.
    pub source: SourceOptions,
    /// `-f`: names of columns, separated by commas, or `none` or `all`. A `+` in front adds them to the usual columns.
    pub fields: Option<String>,
    /// `--flat`.
    pub flat: bool,
    /// Writes names after closing braces.
    pub comments: bool,
    /// Writes a call that contains no other call in one line.
    pub merge: bool,
    /// `--column-view`: shows tasks side by side.
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

/// The name and heading of each field, in the order in which they are shown.
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

/// Checks the options before there is a recording to show. `hodo live` needs this, because the recording would be lost.
///
/// # Errors
/// If there is no such field, or a pattern of functions to hide is malformed.
pub fn check_replay(options: &ReplayOptions) -> Result<()> {
    let kind = options.source.pattern.unwrap_or(Match::Regex);
    for pattern in &options.source.hide {
        check_pattern(pattern, kind)?;
    }
    fields(options).map(drop)
}

fn fields(options: &ReplayOptions) -> Result<Vec<Field>> {
    let usual = [Field::Duration, Field::Tid];
    // A time range adds the field that the range refers to.
    let range = options.source.range;
    let ranged = range.map(|range| match range.from.or(range.to) {
        Some(Moment::Elapsed(_)) => Field::Elapsed,
        _ => Field::Time,
    });
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
                    "there is no field {name:?}; the fields are {}, all, none",
                    FIELDS.map(|f| f.1).join(", ")
                ),
            },
        }
    }
    if plus {
        chosen.extend(usual);
        chosen.extend(ranged);
    }
    let mut fields: Vec<_> = FIELDS
        .iter()
        .map(|f| f.0)
        .filter(|f| chosen.contains(f))
        .collect();
    if let Some(ranged) = ranged.filter(|_| options.fields.is_none()) {
        fields.retain(|&field| field != ranged);
        fields.insert(0, ranged);
    }
    Ok(fields)
}

/// Deeper calls are not indented further. Otherwise the text of a recursion would grow with the square of its depth.
const DEEPEST: usize = 256;

/// Tasks shown side by side are at most this many levels of calls apart, because each line is padded up to its task's
/// column.
const WIDEST: usize = 256;

/// Text is written in pieces of about this size.
const PIECE: usize = 1 << 16;

/// What the columns of a line show.
#[derive(Debug, Clone, Copy)]
struct Line {
    /// The index of the task among the tasks that are shown.
    task: usize,
    /// How many nanoseconds the call took.
    took: Option<u64>,
    /// The time of the clock in nanoseconds.
    ns: u64,
    id: Option<u32>,
    depth: usize,
}

struct Printer<'a> {
    source: &'a Source,
    options: &'a ReplayOptions,
    fields: Vec<Field>,
    color: Color,
    /// The time of the trace's first record, in nanoseconds.
    first: u64,
    /// By thread: the time of its previous line, in nanoseconds.
    previous: Vec<Option<u64>>,
    /// By index of a task in the trace: its thread.
    threads: Vec<usize>,
    /// By thread: its place in `--column-view`.
    places: HashMap<usize, usize>,
    /// By task: its id, formatted as a column.
    tids: Vec<String>,
    last_thread: Option<usize>,
    text: Vec<u8>,
    begun: bool,
}

impl<'a> Printer<'a> {
    fn new(source: &'a Source, options: &'a ReplayOptions, fields: Vec<Field>) -> Self {
        let tids = source.tasks.iter();
        Self {
            source,
            options,
            fields,
            color: Color(options.source.color),
            first: source.first(),
            previous: vec![None; source.trace.tasks.len()],
            threads: source.threads(),
            places: HashMap::new(),
            tids: tids
                .map(|&at| format!("[{:6}]", source.task(at).tid))
                .collect(),
            last_thread: None,
            text: Vec::with_capacity(2 * PIECE),
            begun: false,
        }
    }

    /// Writes what comes before the first line.
    #[cold]
    fn begin(&mut self) {
        self.begun = true;
        if !self.fields.is_empty() {
            let titles = self.fields.iter();
            let titles =
                titles.map(|field| FIELDS.iter().find(|f| f.0 == *field).map_or("", |f| f.2));
            let titles = titles.collect::<Vec<_>>().join(" ");
            self.text
                .extend_from_slice(format!("#{titles}   FUNCTION\n").as_bytes());
        }
    }

    /// Writes the line between lines of different tasks.
    #[cold]
    fn task_line(&mut self) {
        let titles = self.fields.iter();
        let widths = titles.map(|field| {
            1 + FIELDS
                .iter()
                .find(|f| f.0 == *field)
                .map_or(0, |f| f.2.len())
        });
        let width = widths.sum();
        self.spaces(width);
        self.text.extend_from_slice(b" | \n");
    }

    fn spaces(&mut self, count: usize) {
        self.text.resize(self.text.len() + count, b' ');
    }

    /// Writes the columns in front of the text of a line.
    fn columns(&mut self, line: Line) {
        if !self.begun {
            self.begin();
        }
        if self.options.task_newline {
            let thread = self.threads[self.source.tasks[line.task]];
            if self
                .last_thread
                .replace(thread)
                .is_some_and(|last| last != thread)
            {
                self.task_line();
            }
        }
        for at in 0..self.fields.len() {
            self.text.push(b' ');
            match self.fields[at] {
                Field::Duration => {
                    push_duration(&mut self.text, line.took.unwrap_or(0), self.color)
                }
                Field::Tid => self.text.extend_from_slice(self.tids[line.task].as_bytes()),
                field => {
                    let text = self.column(field, line);
                    self.text.extend_from_slice(text.as_bytes());
                }
            }
        }
        let thread = self.threads[self.source.tasks[line.task]];
        self.previous[thread] = Some(line.ns);
        if !self.fields.is_empty() {
            self.text.extend_from_slice(b" | ");
        }
        if self.options.column_view {
            // As in uftrace, an offset counts call levels.
            let place = self.place(line.task);
            self.spaces(place * self.options.column_offset * 2);
        }
        self.spaces(line.depth.min(DEEPEST) * 2);
        if line.depth > DEEPEST {
            self.text
                .extend_from_slice(format!("/* depth {} */ ", line.depth).as_bytes());
        }
    }

    /// Returns the place of a task in `--column-view`. Threads get places in the order in which they first appear.
    fn place(&mut self, task: usize) -> usize {
        let index = self.source.tasks[task];
        let thread = self.threads[index];
        let next = self.places.len();
        *self.places.entry(thread).or_insert(next)
    }

    /// Formats one of the less usual columns.
    fn column(&self, field: Field, line: Line) -> String {
        let function = line.id.and_then(|id| self.source.trace.function(id));
        let duration = |ns| {
            let mut text = Vec::new();
            push_duration(&mut text, ns, self.color);
            String::from_utf8(text).unwrap_or_default()
        };
        let task = self.source.task(self.source.tasks[line.task]);
        match field {
            Field::Duration | Field::Tid => String::new(),
            Field::Addr => {
                let addr = function.map(|f| format!("{:x}", f.addr));
                format!("{:>12}", addr.unwrap_or_default())
            }
            Field::Time if self.source.timed() => format!("{:>18}", timestamp(line.ns)),
            Field::Time => " ".repeat(18),
            Field::Delta => {
                let thread = self.threads[self.source.tasks[line.task]];
                let previous = self.previous[thread].unwrap_or(line.ns);
                duration(line.ns.saturating_sub(previous))
            }
            Field::Elapsed => duration(line.ns.saturating_sub(self.first)),
            Field::Task => format!("{:>15}", task.comm),
            Field::Module => {
                let module = function.map(|f| self.source.trace.modules[f.module].name());
                format!("{:>16}", printable(module.unwrap_or_default().to_owned()))
            }
        }
    }

    /// Writes a function's name with parentheses, unless the name has arguments already.
    fn call(&mut self, id: u32) {
        let name = self.source.label(id);
        self.text.extend_from_slice(name.as_bytes());
        if !name.ends_with(')') {
            self.text.extend_from_slice(b"()");
        }
    }

    fn end_line(&mut self, text: &str, out: &mut dyn Write) -> Result<()> {
        self.text.extend_from_slice(text.as_bytes());
        self.text.push(b'\n');
        if self.text.len() >= PIECE {
            self.flush(out)?;
        }
        Ok(())
    }

    fn flush(&mut self, out: &mut dyn Write) -> Result<()> {
        out.write_all(&self.text)?;
        self.text.clear();
        Ok(())
    }

    /// Writes what follows the name of a function that is entered.
    fn opening(&mut self, mark: &str, entered: Entered, out: &mut dyn Write) -> Result<()> {
        let how = match entered {
            Entered::Called => return self.end_line(mark, out),
            Entered::Jumped => "tail call",
            Entered::Before => "began before",
            Entered::Resumed => "resumed",
        };
        let (start, end) = self.color.gray();
        self.end_line(&format!("{mark} {start}/* {how} */{end}"), out)
    }

    fn closing(&mut self, id: u32, left: Left, out: &mut dyn Write) -> Result<()> {
        self.text.push(b'}');
        if self.options.comments {
            let (start, end) = self.color.gray();
            let how = match left {
                Left::Returned => "",
                Left::Tail => ", jumped on",
                Left::Unwound => ", unwound",
                Left::Later => ", goes on",
                Left::Switched => ", switched stacks",
            };
            let name = self.source.label(id);
            for text in [start, " /* ", name, how, " */", end] {
                self.text.extend_from_slice(text.as_bytes());
            }
        }
        self.end_line("", out)
    }
}

/// Writes the calls of a trace.
///
/// # Errors
/// If the trace cannot be read, an option is malformed, or `out` cannot be written.
pub fn replay(options: &ReplayOptions, out: &mut dyn Write) -> Result<()> {
    let fields = fields(options)?;
    if options.column_offset > WIDEST {
        bail!("--column-offset is at most {WIDEST}");
    }
    let source = Source::open(&options.source)?;
    if options.flat {
        return flat(&source, out);
    }
    let open = source.tasks.iter();
    let open = open.map(|&index| open_at_first(&source, index)).collect();
    let mut replay = Replay {
        source: &source,
        merge: options.merge,
        printer: Printer::new(&source, options, fields),
        merged: Merged::new(&source),
        addresses: Addresses::new(&source),
        open,
    };
    replay.steps(out)?;
    replay.printer.flush(out)?;
    let open = match source.is_ranged() {
        true => replay.open,
        // This includes the tasks that are not shown.
        false => replay.merged.finish(),
    };
    remaining(&source, &open, out)
}

/// The state that turns the steps of a trace into lines.
struct Replay<'s> {
    source: &'s Source,
    merge: bool,
    printer: Printer<'s>,
    merged: Merged<'s>,
    addresses: Addresses,
    /// By task: the functions that are open and shown.
    open: Vec<Vec<u32>>,
}

impl Replay<'_> {
    fn steps(&mut self, out: &mut dyn Write) -> Result<()> {
        let shown = self.source.range;
        let timed = self.source.timed();
        while let Some((task, step)) = self.merged.next() {
            let ns = self.source.scale.nanoseconds(step.time());
            if timed && ns > shown.last {
                break;
            }
            match step {
                CallStep::Enter { id, .. } => self.open[task].push(id),
                CallStep::Leave { .. } => {
                    self.open[task].pop();
                }
                CallStep::Instant { .. } | CallStep::Lost { .. } => {}
            }
            if !timed || ns >= shown.first {
                self.line(task, ns, step, out)?;
            }
        }
        Ok(())
    }

    /// Writes the line for a step.
    fn line(&mut self, task: usize, ns: u64, step: CallStep, out: &mut dyn Write) -> Result<()> {
        let timed = self.source.timed();
        let line = |took, id, depth| Line {
            task,
            took,
            ns,
            id,
            depth,
        };
        match step {
            CallStep::Enter {
                depth, id, entered, ..
            } => {
                let took = self.leaf(task, ns);
                let printer = &mut self.printer;
                printer.columns(line(took.filter(|_| timed), Some(id), depth));
                printer.call(id);
                let is_leaf = took.is_some();
                if is_leaf {
                    self.merged.next();
                    self.open[task].pop();
                }
                self.printer
                    .opening(if is_leaf { ";" } else { " {" }, entered, out)
            }
            CallStep::Instant { depth, id, .. } if self.source.is_probe(id) => {
                let payload = self.merged.payload(task);
                let text = comment((self.source, &self.addresses), (task, id), ns, payload);
                self.printer.columns(line(None, Some(id), depth));
                let (start, end) = self.printer.color.gray();
                self.printer
                    .end_line(&format!("{start}/* {text} */{end}"), out)
            }
            CallStep::Instant { depth, id, .. } => {
                self.printer.columns(line(None, Some(id), depth));
                self.printer.call(id);
                self.printer.end_line(";", out)
            }
            CallStep::Leave {
                depth, frame, left, ..
            } => {
                let took = ns.saturating_sub(self.source.scale.nanoseconds(frame.start));
                let took = (timed && !frame.inherited).then_some(took);
                self.printer.columns(line(took, Some(frame.id), depth));
                self.printer.closing(frame.id, left, out)
            }
            CallStep::Lost { count, .. } => {
                self.printer
                    .columns(line(None, None, self.open[task].len()));
                let text = self
                    .printer
                    .color
                    .red(&format!("/* LOST {count} records!! */"));
                self.printer.end_line(&text, out)
            }
        }
    }

    /// If the function entered at this time is left next, returns how long it took. Its call is then written in one
    /// line.
    fn leaf(&mut self, task: usize, ns: u64) -> Option<u64> {
        if !self.merge {
            return None;
        }
        let (next, step) = self.merged.peek()?;
        let CallStep::Leave {
            time: end,
            left: Left::Returned,
            ..
        } = step
        else {
            return None;
        };
        let end = self.source.scale.nanoseconds(end);
        let shown = !self.source.timed() || end <= self.source.range.last;
        (next == task && shown).then(|| end.saturating_sub(ns))
    }
}

/// Writes the functions that were open at the end.
fn remaining(source: &Source, open: &[Vec<u32>], out: &mut dyn Write) -> Result<()> {
    // A program that was replaced by another one did not end in its open functions.
    let tasks = source.trace.tasks.iter();
    let replaced: HashSet<u32> = tasks
        .filter(|t| t.kind == "exec")
        .map(|t| t.parent)
        .collect();
    let mut any = false;
    for (open, &index) in open.iter().zip(&source.tasks) {
        let task = source.task(index);
        if open.is_empty() || replaced.contains(&task.id) {
            continue;
        }
        if !any {
            writeln!(out, "\nhodo stopped tracing with remaining functions")?;
            writeln!(out, "=============================================")?;
            any = true;
        }
        writeln!(out, "task: {}", task.tid)?;
        for (depth, &id) in open.iter().enumerate().rev() {
            writeln!(out, "[{depth}] {}", source.label(id))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// `--flat`: writes a line for each entry and exit.
fn flat(source: &Source, out: &mut dyn Write) -> Result<()> {
    writeln!(out)?;
    for (number, (task, step)) in Merged::new(source).enumerate() {
        let tid = source.task(source.tasks[task]).tid;
        let ns = source.scale.nanoseconds(step.time());
        if source.timed() && !source.range.contains(ns) {
            continue;
        }
        match step {
            CallStep::Enter { depth, id, .. } | CallStep::Instant { depth, id, .. } => {
                let name = source.label(id);
                writeln!(
                    out,
                    "[{number}] ==> {tid}/{depth}: ip ({name}), time ({ns})"
                )?;
            }
            CallStep::Leave { depth, frame, .. } => {
                let name = source.label(frame.id);
                let took = ns.saturating_sub(source.scale.nanoseconds(frame.start));
                writeln!(
                    out,
                    "[{number}] <== {tid}/{depth}: ip ({name}), time ({ns}:{took})"
                )?;
            }
            CallStep::Lost { count, .. } => {
                writeln!(
                    out,
                    "[{number}] XXX {tid}: lost {count} records, time ({ns})"
                )?;
            }
        }
    }
    Ok(())
}
