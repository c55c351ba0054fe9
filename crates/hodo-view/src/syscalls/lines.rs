//! System calls as lines, as strace writes them.

use std::io::Write;

use anyhow::Result;
use hodo_trace::meta;

use super::args::{Call, Part, put_name};
use super::errors::sig;
use super::read::{Enter, Event, Exit, Pieces};
use super::result::put_result;
use super::signals::information;
use super::text::{put_number, quoted};
use super::{Stamp, SyscallsOptions, Times};
use crate::source::Source;

/// The column of `=`.
const COLUMN: usize = 40;
/// Nanoseconds after which a call that does not end is shown without its end.
const HANGS: u64 = 100_000_000;
/// Calls of a task that were interrupted by signal handlers and are remembered.
const DEEPEST: usize = 64;

/// A call that has begun.
pub(super) struct Pending {
    pub enter: Enter,
    /// Its beginning was written, and something else after it.
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

    /// One that has not ended, of any task.
    pub fn any(&mut self) -> Option<Pending> {
        self.by_task.iter_mut().find_map(Vec::pop)
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
    // While the trace is being written, the other one is not there yet.
    source.growing && ended.exit.is_none()
        || source.tasks.iter().any(|&other| {
            let other = source.task(other);
            other.kind == "exec" && other.parent == ended.id
        })
}

/// Calls as lines.
pub(super) struct Lines {
    open: Open,
    /// The task of which the last line is not complete.
    current: Option<usize>,
    /// Tasks that run.
    alive: usize,
    /// Signals that came, by task. In a call, its end is what comes next, or the first call of a handler.
    signals: Vec<(usize, usize)>,
    /// Room for a line.
    line: String,
    /// Each line begins with a thread id; otherwise those do that are written while more than one thread runs.
    numbered: bool,
    /// The program's own start is shown.
    first: bool,
    times: Times,
    /// When the last line with a relative time began, in nanoseconds.
    before: Option<u64>,
}

impl Lines {
    pub fn new(options: &SyscallsOptions, first: bool) -> Self {
        Self {
            open: Open::default(),
            current: None,
            alive: 0,
            signals: Vec::new(),
            line: String::with_capacity(256),
            numbered: options.numbered,
            first,
            times: options.times,
            before: None,
        }
    }

    /// Writes what an event makes known.
    pub fn event(&mut self, source: &Source, event: Event, out: &mut dyn Write) -> Result<()> {
        match event {
            Event::Begin(task) => self.begin(source, task, out),
            Event::Enter(enter) => {
                self.told(source, Some(enter.task), out)?;
                self.interrupt(source, out)?;
                self.current = Some(enter.task);
                self.open.begin(enter);
                Ok(())
            }
            Event::Exit(exit) => {
                if let Some(pending) = self.open.end(exit.task) {
                    self.call(source, &pending, Some(&exit), out)?;
                }
                self.told(source, Some(exit.task), out)
            }
            Event::Signal(task, signal) => {
                self.signals.push((task, signal));
                match self.open.is_in_call(task) {
                    true => Ok(()),
                    false => self.told(source, Some(task), out),
                }
            }
            Event::End(task) => {
                self.told(source, Some(task), out)?;
                self.end(source, task, out)
            }
        }
    }

    /// Nothing comes any more.
    pub fn finish(&mut self, source: &Source, out: &mut dyn Write) -> Result<()> {
        self.told(source, None, out)?;
        for task in 0..self.open.by_task.len() {
            self.unfinished(source, task, out)?;
        }
        Ok(())
    }

    /// Writes the beginning of the last call, if it has not ended by a time that is longer after that.
    pub fn wait(&mut self, source: &Source, ns: u64, out: &mut dyn Write) -> Result<()> {
        let last = self.current.and_then(|task| self.open.last(task));
        let hangs = last.is_some_and(|pending| pending.enter.ns.saturating_add(HANGS) < ns);
        if hangs {
            self.interrupt(source, out)?;
        }
        Ok(())
    }

    /// Writes the calls of a task that have not ended, and will not be seen to.
    fn unfinished(&mut self, source: &Source, task: usize, out: &mut dyn Write) -> Result<()> {
        while let Some(pending) = self.open.end(task) {
            self.call(source, &pending, None, out)?;
        }
        Ok(())
    }

    /// What a line begins with: whose it is, and when.
    fn prefix(&mut self, source: &Source, task: usize, ns: u64) -> String {
        let mut text = String::new();
        self.put_prefix(source, task, ns, &mut text);
        text
    }

    fn put_prefix(&mut self, source: &Source, task: usize, ns: u64, out: &mut String) {
        self.put_task(source, task, out);
        if self.times.stamp.is_none() && !self.times.relative {
            return;
        }
        let since = self.before.map_or(0, |before| ns.saturating_sub(before));
        self.before = Some(ns.max(self.before.unwrap_or(0)));
        put_times(source, self.times, ns, since, out);
    }

    fn put_task(&self, source: &Source, task: usize, out: &mut String) {
        let (open, width) = match (self.numbered, self.alive > 1) {
            (true, _) => ("", 5),
            (false, true) => ("[pid ", 5),
            (false, false) => return,
        };
        let tid = u64::from(source.task(task).tid.unsigned_abs());
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
    fn interrupt(&mut self, source: &Source, out: &mut dyn Write) -> Result<()> {
        let Some(task) = self.current.take() else {
            return Ok(());
        };
        let ns = match self.open.last(task).filter(|pending| !pending.written) {
            Some(pending) => pending.enter.ns,
            None => return Ok(()),
        };
        let mut line = self.prefix(source, task, ns);
        let Some(pending) = self.open.last(task) else {
            return Ok(());
        };
        pending.written = true;
        let call = Call {
            enter: &pending.enter,
            exit: None,
        };
        line += &call.name();
        line.push('(');
        call.arguments(Part::Beginning, &mut line);
        line.push_str(" <unfinished ...>\n");
        out.write_all(line.as_bytes())?;
        Ok(())
    }

    /// Writes the signals that came to a task, or to all.
    fn told(&mut self, source: &Source, task: Option<usize>, out: &mut dyn Write) -> Result<()> {
        if self.signals.is_empty() {
            return Ok(());
        }
        for (to, signal) in std::mem::take(&mut self.signals) {
            if task.is_some_and(|task| task != to) {
                self.signals.push((to, signal));
                continue;
            }
            self.interrupt(source, out)?;
            let signal = &source.trace.signals[signal];
            let prefix = self.prefix(source, to, source.scale.nanoseconds(signal.counter));
            let name = sig(u64::from(signal.signal.unsigned_abs()));
            let info = information(signal);
            writeln!(out, "{prefix}--- {name} {info} ---")?;
        }
        Ok(())
    }

    /// Writes a call with its end, or what is missing of it.
    fn call(
        &mut self,
        source: &Source,
        pending: &Pending,
        exit: Option<&Exit>,
        out: &mut dyn Write,
    ) -> Result<()> {
        let task = pending.enter.task;
        if self.current != Some(task) || pending.written {
            self.interrupt(source, out)?;
        }
        self.current = None;
        let call = Call {
            enter: &pending.enter,
            exit,
        };
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        let began = pending.enter.ns;
        let ns = match pending.written {
            true => exit.map_or(began, |exit| exit.ns),
            false => began,
        };
        self.put_prefix(source, task, ns, &mut line);
        let start = line.len();
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
        match exit.is_none() && !call.ends_thread() {
            true => {
                if part == Part::All {
                    call.arguments(Part::Beginning, &mut line);
                }
                line.push_str(" <unfinished ...>");
            }
            false => call.arguments(part, &mut line),
        }
        line.push(')');
        let times = self.times.stamp.is_some() || self.times.relative;
        let column = COLUMN + if times { start } else { 0 };
        let column = column.max(line.len() + 1);
        fill(&mut line, column);
        line.push_str("= ");
        put_result(call, &mut line);
        if let Some(name) = exit.and_then(|exit| exit.name.as_deref()) {
            put_name(name, &mut line);
        }
        if pending.enter.earlier {
            line.push_str(" <began earlier>");
        } else if self.times.spent
            && let Some(exit) = exit
        {
            let us = exit.ns.saturating_sub(began) / 1000;
            line += &format!(" <{}.{:06}>", us / 1_000_000, us % 1_000_000);
        }
        line.push('\n');
        out.write_all(line.as_bytes())?;
        self.line = line;
        Ok(())
    }

    fn begin(&mut self, source: &Source, task: usize, out: &mut dyn Write) -> Result<()> {
        self.alive += 1;
        let began = source.scale.nanoseconds(source.task(task).began);
        if let Some(before) = executed_by(source, task) {
            if let Some(mut pending) = self.open.end(before) {
                // It goes on under the id that the process has.
                let exit = Exit {
                    task,
                    ns: began,
                    value: 0,
                    name: None,
                    pieces: Pieces::default(),
                };
                pending.enter.task = task;
                if self.current == Some(before) {
                    self.current = Some(task);
                }
                self.alive -= 1;
                self.call(source, &pending, Some(&exit), out)?;
                self.alive += 1;
            }
        } else if self.first && source.task(task).kind == "start" {
            let info = &source.trace.info;
            let args: Vec<String> = info
                .args
                .iter()
                .map(|arg| quoted(arg.as_bytes(), 32, false))
                .collect();
            let mut line = self.prefix(source, task, began);
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
            writeln!(out, "{line}{:pad$}= 0", "")?;
        }
        Ok(())
    }

    fn end(&mut self, source: &Source, task: usize, out: &mut dyn Write) -> Result<()> {
        let ended = source.task(task);
        if !is_replaced(source, task) {
            self.unfinished(source, task, out)?;
            self.interrupt(source, out)?;
            let ns = source.scale.nanoseconds(ended.ended.unwrap_or(ended.began));
            let exit = ended.exit;
            let prefix = self.prefix(source, task, ns);
            match exit {
                Some(meta::Exit::Code(code)) => {
                    writeln!(out, "{prefix}+++ exited with {code} +++")?
                }
                Some(meta::Exit::Signal(signal)) => {
                    let name = sig(u64::from(signal.unsigned_abs()));
                    writeln!(out, "{prefix}+++ killed by {name} +++")?;
                }
                None => {}
            }
        }
        self.alive = self.alive.saturating_sub(1);
        Ok(())
    }
}

/// Appends the times of a line as strace does. `since`: nanoseconds since the line before.
fn put_times(source: &Source, times: Times, ns: u64, since: u64, out: &mut String) {
    let since = since / 1000;
    let relative = format!("{:6}.{:06}", since / 1_000_000, since % 1_000_000);
    let Some(stamp) = times.stamp else {
        *out += &relative;
        out.push(' ');
        return;
    };
    let info = &source.trace.info;
    // The clock may begin anywhere: the recording's beginning is known by both.
    let first = info.clock.samples.first().map_or(0, |sample| sample.ns);
    let begun = info.started.unix_ns;
    let wall = begun.saturating_add_signed(ns.wrapping_sub(first).cast_signed());
    let (seconds, us) = (wall / 1_000_000_000, wall / 1000 % 1_000_000);
    let local = seconds.saturating_add_signed(times.utc_offset);
    let clock = format!(
        "{:02}:{:02}:{:02}",
        local / 3600 % 24,
        local / 60 % 60,
        local % 60
    );
    *out += &match stamp {
        Stamp::Seconds => clock,
        Stamp::Microseconds => format!("{clock}.{us:06}"),
        Stamp::Unix => format!("{seconds}.{us:06}"),
    };
    if times.relative {
        *out += &format!(" (+{relative})");
    }
    out.push(' ');
}

/// Appends spaces up to a column.
fn fill(line: &mut String, column: usize) {
    const SPACES: &str = "                                        ";
    while line.len() < column {
        line.push_str(&SPACES[..SPACES.len().min(column - line.len())]);
    }
}
