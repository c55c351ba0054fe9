//! System calls as lines, as strace writes them.

use std::collections::HashMap;
use std::io::Write;

use anyhow::Result;
use hodo_trace::meta;

use super::args::{Call, Shown};
use super::errors::sig;
use super::read::{Enter, Event, Events, Exit};
use super::result::result;
use super::text::quoted;
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
    by_task: HashMap<usize, Vec<Pending>>,
}

impl Open {
    pub fn begin(&mut self, enter: Enter) {
        let calls = self.by_task.entry(enter.task).or_default();
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
        self.by_task.get_mut(&task)?.pop()
    }

    fn last(&mut self, task: usize) -> Option<&mut Pending> {
        self.by_task.get_mut(&task)?.last_mut()
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

struct Lines<'a> {
    source: &'a Source,
    out: &'a mut dyn Write,
    open: Open,
    /// The task of which the last line is not complete.
    current: Option<usize>,
    /// Tasks that run.
    alive: usize,
    /// Each line begins with a thread id.
    numbered: bool,
}

/// Writes all calls. `numbered`: each line begins with a thread id; otherwise those do that are written while more than one
/// thread runs. `first`: the program's own start is shown.
pub(super) fn lines(
    source: &Source,
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
        numbered,
    };
    for event in Events::new(source) {
        match event {
            Event::Begin(task) => lines.begin(task, first)?,
            Event::Enter(enter) => {
                lines.interrupt()?;
                lines.current = Some(enter.task);
                lines.open.begin(enter);
            }
            Event::Exit(exit) => {
                if let Some(pending) = lines.open.end(exit.task) {
                    lines.call(&pending, Some(&exit))?;
                }
            }
            Event::End(task) => lines.end(task)?,
        }
    }
    lines.interrupt()
}

impl Lines<'_> {
    fn prefix(&self, task: usize) -> String {
        let tid = self.source.task(task).tid;
        match (self.numbered, self.alive > 1) {
            (true, _) => format!("{tid:<5} "),
            (false, true) => format!("[pid {tid:>5}] "),
            (false, false) => String::new(),
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
        let mut text = String::new();
        for (at, argument) in call.arguments().into_iter().enumerate() {
            if at > 0 {
                text += ", ";
            }
            text += &argument.before;
            if argument.behind.is_some() {
                break;
            }
        }
        writeln!(self.out, "{prefix}{}({text} <unfinished ...>", call.name())?;
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
        let mut line = self.prefix(task);
        line += &match pending.written {
            true => format!("<... {} resumed>", call.name()),
            false => format!("{}(", call.name()),
        };
        line += &rest(&call.arguments(), pending.written);
        line.push(')');
        let pad = COLUMN.saturating_sub(line.len()).max(1);
        writeln!(self.out, "{line}{:pad$}= {}", "", result(call))?;
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
                    pieces: Vec::new(),
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
        let replaced = self.source.tasks.iter().any(|&other| {
            let other = self.source.task(other);
            other.kind == "exec" && other.parent == ended.id
        });
        if !replaced {
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

/// The arguments; those of a call that was interrupted from the one on that was not written.
fn rest(arguments: &[Shown], written: bool) -> String {
    let mut text = String::new();
    let mut shown = !written;
    for (at, argument) in arguments.iter().enumerate() {
        if shown {
            if at > 0 {
                text += ", ";
            }
            text += &argument.before;
        }
        if let Some(behind) = &argument.behind {
            // Where the line was interrupted.
            shown = true;
            text += behind;
        }
    }
    text
}
