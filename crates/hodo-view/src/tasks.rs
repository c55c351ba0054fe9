//! `graph --task`: which task created which, and how long they lived.

use std::io::Write;

use anyhow::{Result, bail};

use hodo_trace::Times;

use crate::format::{Color, duration};
use crate::source::{Source, SourceOptions};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Total,
    Own,
    Tid,
}

const FIELDS: [(Field, &str, &str); 3] = [
    (Field::Total, "total", "TOTAL TIME"),
    (Field::Own, "self", " SELF TIME"),
    (Field::Tid, "tid", "   TID  "),
];

fn fields(text: Option<&str>) -> Result<Vec<Field>> {
    let all = FIELDS.map(|f| f.0);
    let Some(text) = text else {
        return Ok(all.to_vec());
    };
    let (mut chosen, text) = match text.strip_prefix('+') {
        Some(rest) => (all.to_vec(), rest),
        None => (Vec::new(), text),
    };
    for name in text.split(',').map(str::trim).filter(|n| !n.is_empty()) {
        match name {
            "all" => chosen.extend(all),
            "none" => return Ok(Vec::new()),
            _ => match FIELDS.iter().find(|f| f.1 == name) {
                Some(field) => chosen.push(field.0),
                None => bail!(
                    "there is no field {name:?} of tasks; the fields are total, self, tid, all, none"
                ),
            },
        }
    }
    Ok(all.into_iter().filter(|f| chosen.contains(f)).collect())
}

/// A thread, with all programs that it executed.
#[derive(Debug, Default)]
struct Thread<'a> {
    tid: i32,
    name: &'a str,
    /// The times of the first and last record, in units of the counter.
    span: Option<Times>,
    is_process: bool,
    /// The indices of the threads that it created.
    children: Vec<usize>,
}

/// Returns the threads, and the indices of those that no other thread created.
fn threads(source: &Source) -> (Vec<Thread<'_>>, Vec<usize>) {
    let mut threads: Vec<Thread<'_>> = Vec::new();
    let mut roots = Vec::new();
    // By index of a task: its thread.
    let mut of: Vec<usize> = Vec::new();
    for (index, task) in source.trace.tasks.iter().enumerate() {
        let mut above = (task.parent as usize).checked_sub(1).map(|at| of[at]);
        let span = source
            .tasks
            .binary_search(&index)
            .ok()
            .and_then(|_| source.trace.span(task));
        if task.kind == "exec"
            && let Some(at) = above
        {
            let thread = &mut threads[at];
            thread.name = &task.comm;
            thread.span = match (thread.span, span) {
                (Some(old), Some(new)) => Some(Times {
                    first: old.first,
                    last: new.last,
                }),
                (old, new) => old.or(new),
            };
            of.push(at);
            continue;
        }
        let is_process = task.kind != "thread";
        if !is_process {
            // As in uftrace, threads belong to their process, whichever thread of it created them.
            above = above.map(|at| {
                let process = threads
                    .iter()
                    .rposition(|t| t.tid == task.pid && t.is_process);
                process.unwrap_or(at)
            });
        }
        let at = threads.len();
        match above {
            Some(above) => threads[above].children.push(at),
            None => roots.push(at),
        }
        threads.push(Thread {
            tid: task.tid,
            name: &task.comm,
            span,
            is_process,
            children: Vec::new(),
        });
        of.push(at);
    }
    (threads, roots)
}

/// Writes the tree of the tasks.
pub fn graph(options: &SourceOptions, shown: Option<&str>, out: &mut dyn Write) -> Result<()> {
    let fields = fields(shown)?;
    let source = Source::open(options)?;
    let color = Color(options.color);
    let (threads, roots) = threads(&source);
    writeln!(out, "========== TASK GRAPH ==========")?;
    if !fields.is_empty() {
        let titles: Vec<_> = FIELDS
            .iter()
            .filter(|f| fields.contains(&f.0))
            .map(|f| f.2)
            .collect();
        writeln!(out, "# {}   TASK NAME", titles.join("  "))?;
    }
    let columns = |out: &mut dyn Write, thread: Option<&Thread<'_>>| -> Result<()> {
        for field in &fields {
            let text = match (field, thread) {
                (Field::Tid, Some(thread)) => format!("[{:6}]", thread.tid),
                (Field::Tid, None) => " ".repeat(8),
                (
                    _,
                    Some(Thread {
                        span: Some(Times { first, last }),
                        ..
                    }),
                ) if source.timed() => {
                    duration(source.scale.duration(last.saturating_sub(*first)), color)
                }
                _ => " ".repeat(10),
            };
            write!(out, "  {text}")?;
        }
        if !fields.is_empty() {
            write!(out, " : ")?;
        }
        Ok(())
    };
    for root in roots {
        // What is left to print: a thread with the bars before it, and whether a line with only bars precedes it.
        let mut todo = vec![(root, String::new(), false, true)];
        while let Some((at, bars, spaced, last)) = todo.pop() {
            let thread = &threads[at];
            if spaced {
                columns(out, None)?;
                writeln!(
                    out,
                    "{bars} |{}",
                    if thread.is_process { "    " } else { " " }
                )?;
            }
            columns(out, Some(thread))?;
            let is_root = at == root;
            let branch = match thread.is_process {
                _ if is_root => "",
                true => " +----",
                false => " +-",
            };
            writeln!(out, "{bars}{branch}{}", thread.name)?;
            let bars = match (is_root, last) {
                (true, _) => bars,
                (false, true) => bars + "      ",
                (false, false) => bars + " |    ",
            };
            let mut below = Vec::new();
            let mut after_process = false;
            for (place, &child) in thread.children.iter().enumerate() {
                let is_process = threads[child].is_process;
                let last = place + 1 == thread.children.len();
                below.push((child, bars.clone(), is_process || after_process, last));
                after_process = is_process;
            }
            todo.extend(below.into_iter().rev());
        }
        writeln!(out)?;
    }
    Ok(())
}
