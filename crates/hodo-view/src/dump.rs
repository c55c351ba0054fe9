//! `dump`: the trace in the formats of other programs.

use std::collections::HashMap;
use std::io::Write;

use anyhow::{Context, Result};
use hodo_trace::format::{CHUNK_SIZE, RECORD_SIZE};
use hodo_trace::{CallStep, Entered, Left};

use crate::callers::Addresses;
use crate::events::comment;
use crate::format::{printable, timestamp};
use crate::perfetto;
use crate::source::{Source, SourceOptions};
use crate::stream::{Merged, TaskStream};
use crate::tree::{Tree, sessions};

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DumpFormat {
    /// A line for each entry, exit and hit of a probe, task by task.
    #[default]
    Raw,
    /// Chrome's trace event format, for Perfetto and chrome://tracing.
    Chrome,
    /// Perfetto's own binary format.
    Perfetto,
    /// Folded stacks, each with its time in microseconds.
    FlameGraph,
    /// A flame graph.
    Svg,
}

/// What `dump` writes.
#[derive(Debug, Clone, Default)]
pub struct DumpOptions {
    /// Which trace, and which part of it.
    pub source: SourceOptions,
    /// The form.
    pub format: DumpFormat,
    /// `--sample-time`: the nanoseconds that one count of a folded stack stands for. 0 means a microsecond.
    pub sample_time: u64,
}

/// Writes a trace in another format.
///
/// # Errors
/// If the trace cannot be read or `out` cannot be written.
pub fn dump(options: &DumpOptions, out: &mut dyn Write) -> Result<()> {
    let source = Source::open(&options.source)?;
    match options.format {
        DumpFormat::Raw => raw(&source, out),
        DumpFormat::Chrome => chrome(&source, out),
        DumpFormat::Perfetto => perfetto::calls(&source, &options.source, out),
        DumpFormat::FlameGraph => {
            let unit = if options.sample_time == 0 {
                1000
            } else {
                options.sample_time
            };
            folded(&source, unit, &mut |path, count| {
                Ok(writeln!(out, "{path} {count}")?)
            })
        }
        DumpFormat::Svg => svg(&source, out),
    }
}

fn raw(source: &Source, out: &mut dyn Write) -> Result<()> {
    let info = &source.trace.info;
    let clock = format!("{} ({})", info.clock.name, info.clock.source);
    let fields = [
        ("version", info.version.to_string()),
        ("arch", info.arch.clone()),
        ("timed", info.timed.to_string()),
        ("clock", clock),
        ("tasks", source.trace.tasks.len().to_string()),
        ("modules", source.trace.modules.len().to_string()),
    ];
    for (name, value) in fields {
        writeln!(out, "hodo file header: {name:<13} = {value}")?;
    }
    writeln!(out)?;
    let mut tid = None;
    let addresses = Addresses::new(source);
    for (at, &index) in source.tasks.iter().enumerate() {
        let task = source.task(index);
        if tid.replace(task.tid) != Some(task.tid) {
            writeln!(out, "reading {}.dat", task.tid)?;
        }
        let mut steps = TaskStream::new(source, index).keep_depth();
        while let Some(step) = steps.next() {
            let ns = source.scale.nanoseconds(step.time());
            if source.timed() && !source.range.contains(ns) {
                continue;
            }
            let (what, id, depth) = match step {
                CallStep::Enter {
                    depth,
                    id,
                    entered: Entered::Jumped,
                    ..
                } => ("[jump ]", id, depth),
                CallStep::Enter {
                    depth,
                    id,
                    entered: Entered::Resumed,
                    ..
                } => ("[back ]", id, depth),
                CallStep::Enter { depth, id, .. } => ("[entry]", id, depth),
                CallStep::Instant { depth, id, .. } if source.is_probe(id) => {
                    let text = comment((source, &addresses), (at, id), ns, steps.payload());
                    let (when, tid) = (timestamp(ns), task.tid);
                    writeln!(out, "{when} {tid:6}: [event] {text} depth: {depth}")?;
                    continue;
                }
                CallStep::Instant { depth, id, .. } => ("[entry only]", id, depth),
                CallStep::Leave {
                    depth,
                    frame,
                    left: Left::Switched,
                    ..
                } => ("[away ]", frame.id, depth),
                CallStep::Leave { depth, frame, .. } => ("[exit ]", frame.id, depth),
                CallStep::Lost { count, .. } => {
                    writeln!(
                        out,
                        "{} {:6}: [lost ] {count} records",
                        timestamp(ns),
                        task.tid
                    )?;
                    continue;
                }
            };
            let addr = source.trace.function(id).map_or(0, |f| f.addr);
            writeln!(
                out,
                "{} {:6}: {what} {}({addr:x}) depth: {depth}",
                timestamp(ns),
                task.tid,
                source.label(id)
            )?;
        }
    }
    Ok(())
}

/// Above this size, a message states how large the trace in Chrome's format will be: opening it takes several times as
/// much memory.
const LARGE: u64 = 500_000_000;

/// Estimates the size in bytes of the whole trace in Chrome's format.
fn chrome_size(source: &Source) -> u64 {
    /// How many records of each task are examined.
    const SAMPLE: usize = 10_000;
    /// The text of an event, apart from its numbers and its name.
    const FRAME: usize = r#"{"ts":.000,"ph":"B","pid":,"tid":,"name":""},.."#.len();
    let digits = |number: u64| number.to_string().len();
    let ts = digits(source.first() / 1000);
    let mut size: u64 = 0;
    for &index in &source.tasks {
        let task = source.task(index);
        let records = task.chunks.len() as u64 * (CHUNK_SIZE / RECORD_SIZE);
        let ids = digits(task.pid as u64) + digits(task.tid as u64);
        let (mut looked, mut names) = (0, 0);
        for record in source.trace.records(task).take(SAMPLE) {
            looked += 1;
            names += source.label(record.id).len() as u64;
        }
        let name = names / looked.max(1);
        size = size.saturating_add(records.saturating_mul((FRAME + ts + ids) as u64 + name));
    }
    size
}

/// Writes a message that states the size of the result, if it is large.
fn announce_size(source: &Source) {
    let size = chrome_size(source);
    if size > LARGE {
        let less = match source.is_ranged() {
            true => "at most ",
            false => "",
        };
        eprintln!(
            "hodo: this makes {less}about {:.1} GB; less with -r, -F, -D, -t, or with --perfetto",
            size as f64 / 1e9
        );
    }
}

/// Events in Chrome's format, separated by commas.
struct ChromeEvents<'o> {
    out: &'o mut dyn Write,
    first: bool,
}

impl ChromeEvents<'_> {
    fn add(&mut self, text: std::fmt::Arguments<'_>) -> Result<()> {
        self.out
            .write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        Ok(self.out.write_fmt(text)?)
    }

    /// Writes the names of processes and threads.
    fn name_tasks(&mut self, source: &Source) -> Result<()> {
        for &index in &source.tasks {
            let task = source.task(index);
            let (pid, tid) = (task.pid, task.tid);
            let name = json(&format!("[{}] {}", pid, task.comm))?;
            if pid == tid {
                self.add(format_args!(
                    "{{\"ts\":0,\"ph\":\"M\",\"pid\":{pid},\"name\":\"process_name\",\"args\":{{\"name\":{name}}}}}"
                ))?;
            }
            let name = json(&format!("[{}] {}", tid, task.comm))?;
            self.add(format_args!(
                "{{\"ts\":0,\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}}}"
            ))?;
        }
        Ok(())
    }

    /// Writes what the tasks did. `names` are the functions' names, as JSON.
    fn steps(&mut self, source: &Source, names: &[String]) -> Result<()> {
        // In a trace without time, steps are a microsecond apart.
        let timed = source.timed();
        // By track: the task that made its last event, and its open calls.
        let mut open: HashMap<(i32, i32), (usize, Vec<u32>)> = HashMap::new();
        for (number, (at, step)) in Merged::new(source).enumerate() {
            let ns = if timed {
                source.scale.nanoseconds(step.time())
            } else {
                number as u64 * 1000
            };
            if timed && !source.range.contains(ns) {
                continue;
            }
            let task = source.task(source.tasks[at]);
            let (pid, tid, us, part) = (task.pid, task.tid, ns / 1000, ns % 1000);
            let (last, calls) = open.entry((pid, tid)).or_default();
            if std::mem::replace(last, at) != at {
                // The previous program in this process, or a previous process with this pid, left these calls open.
                for id in calls.drain(..).rev() {
                    let name = names.get(id as usize);
                    let name = name.map_or("\"<unknown>\"", String::as_str);
                    self.add(format_args!(
                        "{{\"ts\":{us}.{part:03},\"ph\":\"E\",\"pid\":{pid},\"tid\":{tid},\"name\":{name}}}"
                    ))?;
                }
            }
            match step {
                CallStep::Enter { id, .. } => calls.push(id),
                CallStep::Leave { .. } => drop(calls.pop()),
                CallStep::Instant { .. } | CallStep::Lost { .. } => {}
            }
            let (phase, name) = match step {
                CallStep::Enter { id, .. } => ("\"B\"", names.get(id as usize)),
                CallStep::Leave { frame, .. } => ("\"E\"", names.get(frame.id as usize)),
                CallStep::Instant { id, .. } => ("\"i\",\"s\":\"t\"", names.get(id as usize)),
                CallStep::Lost { .. } => ("\"i\",\"s\":\"t\"", None),
            };
            let name = name.map_or("\"lost records\"", String::as_str);
            let args = match step {
                CallStep::Enter {
                    entered: Entered::Jumped,
                    ..
                } => ",\"args\":{\"call\":\"tail call\"}",
                _ => "",
            };
            self.add(format_args!(
                "{{\"ts\":{us}.{part:03},\"ph\":{phase},\"pid\":{pid},\"tid\":{tid},\"name\":{name}{args}}}"
            ))?;
        }
        Ok(())
    }
}

fn json(text: &str) -> serde_json::Result<String> {
    serde_json::to_string(text)
}

fn chrome(source: &Source, out: &mut dyn Write) -> Result<()> {
    announce_size(source);
    write!(out, "{{\"traceEvents\":[")?;
    let ids = 0..source.trace.functions.len() as u32;
    let names: Vec<String> = ids
        .map(|id| json(source.label(id)))
        .collect::<Result<_, _>>()?;
    let mut events = ChromeEvents { out, first: true };
    events.name_tasks(source)?;
    events.steps(source, &names)?;
    let info = &source.trace.info;
    let version = json(&format!("hodo {}", info.hodo))?;
    let command = json(&info.cmdline.join(" "))?;
    writeln!(
        out,
        "\n],\"displayTimeUnit\":\"ns\",\"metadata\":{{\n\"version\":{version},\n\"command_line\":{command},\n\"recorded_time_unix_ns\":{}\n}} }}",
        info.started.unix_ns
    )?;
    Ok(())
}

/// Passes on each stack with the time spent in it, in units of `unit` nanoseconds. Without times, it has the number of
/// calls. Stacks may be deep: only those that are passed on are copied.
fn folded(source: &Source, unit: u64, each: &mut dyn FnMut(&str, u64) -> Result<()>) -> Result<()> {
    let mut whole = Tree::default();
    for session in sessions(source) {
        whole.join(&session.tree, 0);
    }
    let mut path = String::new();
    // Each node with the length of its caller's path.
    let mut todo: Vec<(u32, usize)> = vec![(0, 0)];
    while let Some((index, outer)) = todo.pop() {
        let node = &whole.nodes[index as usize];
        path.truncate(outer);
        if index != 0 {
            if !path.is_empty() {
                path.push(';');
            }
            // Semicolons separate frames, so names must not contain any.
            path.push_str(&source.label(node.id).replace(';', ":"));
            let count = if source.timed() {
                source
                    .scale
                    .duration(whole.own(index))
                    .saturating_add(unit / 2)
                    / unit
            } else {
                node.calls
            };
            if count > 0 {
                each(&path, count)?;
            }
        }
        let children = node.children.iter().rev();
        todo.extend(children.map(|&child| (child, path.len())));
    }
    Ok(())
}

fn svg(source: &Source, out: &mut dyn Write) -> Result<()> {
    let mut lines = Vec::new();
    folded(source, 1, &mut |path, count| {
        lines.push(format!("{path} {count}"));
        Ok(())
    })?;
    let unit = if source.timed() { "ns" } else { "calls" };
    let title = printable(source.trace.info.args.join(" "));
    flame_graph(&lines, title, unit, out)
}

/// Draws folded stacks: functions with semicolons between them, the outermost first, and a number of `unit`.
///
/// # Errors
/// If there are none, or they cannot be written.
pub fn flame_graph(lines: &[String], title: String, unit: &str, out: &mut dyn Write) -> Result<()> {
    let mut options = inferno::flamegraph::Options::default();
    options.title = title;
    options.count_name = unit.to_owned();
    options.name_type = "Function:".to_owned();
    options.hash = true;
    let mut drawn = Vec::new();
    inferno::flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut drawn)
        .context("drawing the flame graph")?;
    label_root(&mut drawn);
    Ok(out.write_all(&drawn)?)
}

/// Labels the bar of the whole graph with its title. The bar has no function, so its label is blank.
fn label_root(svg: &mut Vec<u8>) {
    let find = |text: &[u8], from: usize| {
        let mut places = svg[from..].windows(text.len());
        places.position(|place| place == text).map(|at| from + at)
    };
    let root = find(b"<title>all (", 0);
    let text = root.and_then(|root| find(b"<text ", root));
    let end = text.and_then(|text| find(b">", text)).map(|end| end + 1);
    if let Some(end) = end
        && svg[end..].starts_with(b"</text>")
    {
        svg.splice(end..end, *b"all");
    }
}
