//! System calls as lines, as strace writes them.

use std::io::Write;

use anyhow::Result;
use hodo_trace::{Machine, meta};

use super::args::{Call, Part};
use super::errors::sig;
use super::read::{Enter, Event, Events, Exit, Pieces};
use super::result::put_result;
use super::signals::information;
use super::text::{put_number, quoted};
use crate::source::Source;

/// The column of `=`.
const COLUMN: usize = 40;
/// Calls of a task that were interrupted by signal handlers and are remembered.
const DEEPEST: usize = 64;

/// A call that has begun.
pub(super) struct Pending {
    pub enter: Enter,
    /// Its beginning was written, and something else behind it.
    written: bool,
}

/// What is known of all calls that have begun, by task. The last one of a task is the first that ends.
#[derive(Default)]
pub(super) struct Open {
    by_task: Vec<Vec<Pending>>,
}

impl Open {
    pub fn begin(&mut self, enter: Enter) {
        if self.by_task.len() <= enter.task {
            self.by_task.resize_with(enter.task + 1, Vec::new);
        }
        let calls = &mut self.by_task[enter.task];
        if calls.len() == DEEPEST {
            // Handlers that leave by longjmp leave their calls, too.
            calls.remove(0);
        }
        calls.push(Pending {
            enter,
            written: false,
        });
    }

    /// The call that ends.
    pub fn end(&mut self, task: usize) -> Option<Pending> {
        self.by_task.get_mut(task)?.pop()
    }

    fn is_in_call(&self, task: usize) -> bool {
        self.by_task
            .get(task)
            .is_some_and(|calls| !calls.is_empty())
    }

    fn last(&mut self, task: usize) -> Option<&mut Pending> {
        self.by_task.get_mut(task)?.last_mut()
    }
}

/// The task that a task came from by executing a program.
pub(super) fn executed_by(source: &Source, index: usize) -> Option<usize> {
    let task = source.task(index);
    if task.kind != "exec" {
        return None;
    }
    source
        .tasks
        .iter()
        .copied()
        .find(|&other| source.task(other).id == task.parent)
}

/// Whether a task goes on as another one, having executed a program.
pub(super) fn is_replaced(source: &Source, index: usize) -> bool {
    let ended = source.task(index);
    source.tasks.iter().any(|&other| {
        let other = source.task(other);
        other.kind == "exec" && other.parent == ended.id
    })
}

struct Lines<'a> {
    source: &'a Source,
    out: &'a mut dyn Write,
    open: Open,
    /// The task of which the last line is not complete.
    current: Option<usize>,
    /// Tasks that run.
    alive: usize,
    /// Signals that came, by task. In a call, its end is what comes next, or the first call of a handler.
    signals: Vec<(usize, usize)>,
    /// Room for a line.
    line: String,
    /// Each line begins with a thread id.
    numbered: bool,
}

/// Writes all calls. `numbered`: each line begins with a thread id; otherwise those do that are written while more than one
/// thread runs. `first`: the program's own start is shown.
pub(super) fn lines(
    (source, machine): (&Source, Machine),
    numbered: bool,
    first: bool,
    out: &mut dyn Write,
) -> Result<()> {
    let mut lines = Lines {
        source,
        out,
        open: Open::default(),
        current: None,
        alive: 0,
        signals: Vec::new(),
        line: String::with_capacity(256),
        numbered,
    };
    for event in Events::new(source, machine) {
        match event {
            Event::Begin(task) => lines.begin(task, first)?,
            Event::Enter(enter) => {
                lines.told(Some(enter.task))?;
                lines.interrupt()?;
                lines.current = Some(enter.task);
                lines.open.begin(enter);
            }
            Event::Exit(exit) => {
                if let Some(pending) = lines.open.end(exit.task) {
                    lines.call(&pending, Some(&exit))?;
                }
                lines.told(Some(exit.task))?;
            }
            Event::Signal(task, signal) => {
                lines.signals.push((task, signal));
                if !lines.open.is_in_call(task) {
                    lines.told(Some(task))?;
                }
            }
            Event::End(task) => {
                lines.told(Some(task))?;
                lines.end(task)?;
            }
        }
    }
    lines.told(None)?;
    lines.interrupt()
}

impl Lines<'_> {
    fn prefix(&self, task: usize) -> String {
        let mut text = String::new();
        self.put_prefix(task, &mut text);
        text
    }

    fn put_prefix(&self, task: usize, out: &mut String) {
        let (open, width) = match (self.numbered, self.alive > 1) {
            (true, _) => ("", 5),
            (false, true) => ("[pid ", 5),
            (false, false) => return,
        };
        let tid = u64::from(self.source.task(task).tid.unsigned_abs());
        out.push_str(open);
        if self.numbered {
            let start = out.len();
            put_number(out, tid);
            fill(out, start + width);
            out.push(' ');
        } else {
            let digits = tid.checked_ilog10().unwrap_or(0) as usize + 1;
            fill(out, open.len() + width.saturating_sub(digits));
            put_number(out, tid);
            out.push_str("] ");
        }
    }

    /// Writes the beginning of the call that is not yet complete, for another line comes now.
    fn interrupt(&mut self) -> Result<()> {
        let Some(task) = self.current.take() else {
            return Ok(());
        };
        let prefix = self.prefix(task);
        let Some(pending) = self.open.last(task).filter(|pending| !pending.written) else {
            return Ok(());
        };
        pending.written = true;
        let call = Call {
            enter: &pending.enter,
            exit: None,
        };
        let mut line = prefix;
        line += &call.name();
        line.push('(');
        call.arguments(Part::Beginning, &mut line);
        line.push_str(" <unfinished ...>\n");
        self.out.write_all(line.as_bytes())?;
        Ok(())
    }

    /// Writes the signals that came to a task, or to all.
    fn told(&mut self, task: Option<usize>) -> Result<()> {
        if self.signals.is_empty() {
            return Ok(());
        }
        for (to, signal) in std::mem::take(&mut self.signals) {
            if task.is_some_and(|task| task != to) {
                self.signals.push((to, signal));
                continue;
            }
            self.interrupt()?;
            let prefix = self.prefix(to);
            let signal = &self.source.trace.signals[signal];
            let name = sig(u64::from(signal.signal.unsigned_abs()));
            let info = information(signal);
            writeln!(self.out, "{prefix}--- {name} {info} ---")?;
        }
        Ok(())
    }

    /// Writes a call with its end, or what is missing of it.
    fn call(&mut self, pending: &Pending, exit: Option<&Exit>) -> Result<()> {
        let task = pending.enter.task;
        if self.current != Some(task) || pending.written {
            self.interrupt()?;
        }
        self.current = None;
        let call = Call {
            enter: &pending.enter,
            exit,
        };
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        self.put_prefix(task, &mut line);
        let part = match pending.written {
            true => {
                line.push_str("<... ");
                line += &call.name();
                line.push_str(" resumed>");
                Part::Rest
            }
            false => {
                line += &call.name();
                line.push('(');
                Part::All
            }
        };
        call.arguments(part, &mut line);
        line.push(')');
        let column = COLUMN.max(line.len() + 1);
        fill(&mut line, column);
        line.push_str("= ");
        put_result(call, &mut line);
        line.push('\n');
        self.out.write_all(line.as_bytes())?;
        self.line = line;
        Ok(())
    }

    fn begin(&mut self, task: usize, first: bool) -> Result<()> {
        self.alive += 1;
        if let Some(before) = executed_by(self.source, task) {
            if let Some(mut pending) = self.open.end(before) {
                // It goes on under the id that the process has.
                let exit = Exit {
                    task,
                    ns: 0,
                    value: 0,
                    pieces: Pieces::default(),
                };
                pending.enter.task = task;
                if self.current == Some(before) {
                    self.current = Some(task);
                }
                self.alive -= 1;
                self.call(&pending, Some(&exit))?;
                self.alive += 1;
            }
        } else if first && self.source.task(task).kind == "start" {
            let info = &self.source.trace.info;
            let args: Vec<String> = info
                .args
                .iter()
                .map(|arg| quoted(arg.as_bytes(), 32, false))
                .collect();
            let mut line = self.prefix(task);
            line += &format!(
                "execve({}, [{}]",
                quoted(info.exe.as_bytes(), usize::MAX, false),
                args.join(", ")
            );
            line += &match info.variables {
                Some(count) => format!(", [/* {count} vars */])"),
                None => ", [...])".to_owned(),
            };
            let pad = COLUMN.saturating_sub(line.len()).max(1);
            writeln!(self.out, "{line}{:pad$}= 0", "")?;
        }
        Ok(())
    }

    fn end(&mut self, task: usize) -> Result<()> {
        let ended = self.source.task(task);
        if !is_replaced(self.source, task) {
            while let Some(pending) = self.open.end(task) {
                self.call(&pending, None)?;
            }
            self.interrupt()?;
            let prefix = self.prefix(task);
            match ended.exit {
                Some(meta::Exit::Code(code)) => {
                    writeln!(self.out, "{prefix}+++ exited with {code} +++")?
                }
                Some(meta::Exit::Signal(signal)) => {
                    let name = sig(u64::from(signal.unsigned_abs()));
                    writeln!(self.out, "{prefix}+++ killed by {name} +++")?;
                }
                None => {}
            }
        }
        self.alive = self.alive.saturating_sub(1);
        Ok(())
    }
}

/// Appends spaces up to a column.
fn fill(line: &mut String, column: usize) {
    const SPACES: &str = "                                        ";
    while line.len() < column {
        line.push_str(&SPACES[..SPACES.len().min(column - line.len())]);
    }
}
