//! System calls as lines, as strace writes them.

use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use hodo_trace::meta::{self, Signal};
use hodo_trace::syscalls::{BUFFER, has_results};

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
/// At most this many arguments of a program are shown, unless nothing is abridged.
const STRINGS: usize = 32;
/// A call that has not ended after this many nanoseconds is shown without its end.
const HANGS: u64 = 100_000_000;
/// At most this many interrupted calls of a task are remembered.
const DEEPEST: usize = 64;

/// A call that has begun.
#[derive(Clone)]
pub(super) struct Pending {
    pub enter: Enter,
    /// Whether its beginning was written, followed by something else.
    written: bool,
    /// If a handler interrupted it: when, and the result that it will have. If the handler is left by a jump, the call
    /// never ends.
    interrupted: Option<(u64, u64)>,
    /// It is shown whole: what comes of it is not.
    told: bool,
}

impl Pending {
    /// Returns the end of a call that a handler interrupted and never returned to.
    pub fn end_at_signal(&self) -> Option<Exit> {
        let (ns, value) = self.interrupted?;
        Some(Exit {
            task: self.enter.task,
            ns,
            value,
            name: None,
            listed: Vec::new(),
            pieces: Pieces::default(),
        })
    }

    /// Returns whether the signal's handler may make no difference to the call: it is not made again.
    fn is_over(&self) -> bool {
        let is_result = |value: u64| !matches!(value.cast_signed(), -516..=-512);
        self.interrupted.is_some_and(|(_, value)| is_result(value))
            && !has_results(self.enter.machine, self.enter.number)
    }
}

/// The unfinished calls, by task. The last call of a task ends first.
#[derive(Default)]
pub(super) struct Open {
    by_task: Vec<Vec<Pending>>,
}

impl Open {
    /// Takes a call that begins. Returns one that will never end.
    pub fn begin(&mut self, enter: Enter) -> Option<Pending> {
        if self.by_task.len() <= enter.task {
            self.by_task.resize_with(enter.task + 1, Vec::new);
        }
        let calls = &mut self.by_task[enter.task];
        // Handlers that leave with longjmp never return to the calls they interrupted.
        let lost = (calls.len() == DEEPEST).then(|| calls.remove(0));
        calls.push(Pending {
            enter,
            written: false,
            interrupted: None,
            told: false,
        });
        lost
    }

    /// A signal arrives whose handler interrupts a call.
    pub fn interrupt(&mut self, source: &Source, task: usize, signal: &Signal) {
        if let Some((number, result)) = signal.call
            && let Some(pending) = self.last(task)
            && pending.enter.number == number
            && pending.interrupted.is_none()
        {
            let ns = source.scale.nanoseconds(signal.counter);
            pending.interrupted = Some((ns, result.cast_unsigned()));
        }
    }

    /// Takes the calls that handlers interrupted and never returned to, when nothing more will come.
    pub fn left(&mut self) -> impl Iterator<Item = Pending> {
        let tasks = std::mem::take(&mut self.by_task).into_iter();
        tasks.flat_map(|calls| {
            let last = calls.len().saturating_sub(1);
            let calls = calls.into_iter().enumerate();
            let left = calls.filter(move |(at, call)| *at < last || call.interrupted.is_some());
            left.map(|(_, call)| call)
        })
    }

    /// Takes the call that ends.
    pub fn end(&mut self, task: usize) -> Option<Pending> {
        self.by_task.get_mut(task)?.pop()
    }

    /// Takes an unfinished call of any task.
    pub fn any(&mut self) -> Option<Pending> {
        self.by_task.iter_mut().find_map(Vec::pop)
    }

    fn is_in_call(&self, task: usize) -> bool {
        self.by_task
            .get(task)
            .is_some_and(|calls| calls.last().is_some_and(|call| !call.told))
    }

    fn last(&mut self, task: usize) -> Option<&mut Pending> {
        self.by_task.get_mut(task)?.last_mut()
    }
}

/// Returns the task that became this one by executing a program.
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

/// Returns whether a task continues as another one, because it executed a program.
pub(super) fn is_replaced(source: &Source, index: usize) -> bool {
    let ended = source.task(index);
    // While the trace is being written, the other task may not be there yet.
    source.growing && ended.exit.is_none()
        || source.tasks.iter().any(|&other| {
            let other = source.task(other);
            other.kind == "exec" && other.parent == ended.id
        })
}

/// Writes calls as lines.
pub(super) struct Lines {
    open: Open,
    /// The task whose line is not complete yet.
    current: Option<usize>,
    /// How many tasks run.
    alive: usize,
    /// Signals that have arrived, each with its task. If one arrives in a call, the next event is the end of the call
    /// or the first call of a handler.
    signals: Vec<(usize, usize)>,
    /// A buffer for a line.
    line: String,
    /// Whether each line begins with a thread id. Otherwise only lines written while several threads run do.
    numbered: bool,
    /// Whether the program's own start is shown.
    first: bool,
    /// How many bytes of a string are shown.
    limit: usize,
    /// The variables of the program's environment, if they are shown.
    environment: Option<Vec<OsString>>,
    times: Times,
    /// When the previous line with a relative time began, in nanoseconds.
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
            limit: options.limit.unwrap_or(BUFFER),
            environment: options.environment.clone(),
            times: options.times,
            before: None,
        }
    }

    /// Writes what an event makes known.
    pub fn event(&mut self, source: &Source, event: Event, out: &mut dyn Write) -> Result<()> {
        match event {
            Event::Begin(task) => self.begin(source, task, out),
            Event::Enter(enter) => {
                self.put_signals(source, Some(enter.task), out)?;
                self.interrupt(source, out)?;
                let task = enter.task;
                if let Some(lost) = self.open.begin(enter) {
                    self.last_of(source, &lost, out)?;
                }
                self.current = Some(task);
                Ok(())
            }
            Event::Exit(exit) => {
                if let Some(pending) = self.open.end(exit.task)
                    && !pending.told
                {
                    self.call(source, &pending, Some(&exit), out)?;
                }
                self.put_signals(source, Some(exit.task), out)
            }
            Event::Signal(task, signal) => {
                let about = &source.trace.signals[signal];
                self.open.interrupt(source, task, about);
                self.end_at_signal(source, task, out)?;
                self.signals.push((task, signal));
                match self.open.is_in_call(task) {
                    true => Ok(()),
                    false => self.put_signals(source, Some(task), out),
                }
            }
            Event::End(task) => {
                self.put_signals(source, Some(task), out)?;
                self.end(source, task, out)
            }
        }
    }

    /// Writes what is left, when nothing more will come.
    pub fn finish(&mut self, source: &Source, out: &mut dyn Write) -> Result<()> {
        self.put_signals(source, None, out)?;
        for task in 0..self.open.by_task.len() {
            self.unfinished(source, task, out)?;
        }
        Ok(())
    }

    /// Writes the beginning of the last call if it has not ended long before `ns`.
    pub fn wait(&mut self, source: &Source, ns: u64, out: &mut dyn Write) -> Result<()> {
        let last = self.current.and_then(|task| self.open.last(task));
        let hangs = last.is_some_and(|pending| pending.enter.ns.saturating_add(HANGS) < ns);
        if hangs {
            self.interrupt(source, out)?;
        }
        Ok(())
    }

    /// Writes the unfinished calls of a task whose ends will not be seen.
    fn unfinished(&mut self, source: &Source, task: usize, out: &mut dyn Write) -> Result<()> {
        while let Some(pending) = self.open.end(task) {
            self.last_of(source, &pending, out)?;
        }
        Ok(())
    }

    /// Writes what is known of a call whose end will not be seen.
    fn last_of(&mut self, source: &Source, pending: &Pending, out: &mut dyn Write) -> Result<()> {
        match (pending.told, pending.end_at_signal()) {
            (true, _) => Ok(()),
            (false, exit) => self.call(source, pending, exit.as_ref(), out),
        }
    }

    /// Writes the whole call that a handler interrupts, if nothing more will become known of it.
    fn end_at_signal(&mut self, source: &Source, task: usize, out: &mut dyn Write) -> Result<()> {
        let last = self.open.last(task);
        let Some(pending) = last.filter(|pending| !pending.told && pending.is_over()) else {
            return Ok(());
        };
        pending.told = true;
        let pending = pending.clone();
        self.call(source, &pending, pending.end_at_signal().as_ref(), out)
    }

    /// Returns the beginning of a line: thread id and times.
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

    /// Writes the beginning of the unfinished call, because another line follows.
    fn interrupt(&mut self, source: &Source, out: &mut dyn Write) -> Result<()> {
        let Some(task) = self.current.take() else {
            return Ok(());
        };
        let ns = match self
            .open
            .last(task)
            .filter(|pending| !pending.written && !pending.told)
        {
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

    /// Writes the signals that one task received, or those of all tasks.
    fn put_signals(
        &mut self,
        source: &Source,
        task: Option<usize>,
        out: &mut dyn Write,
    ) -> Result<()> {
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

    /// Writes a call with its end, or the rest of a call whose beginning is written.
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
                // The call continues under the id of the process.
                let exit = Exit {
                    task,
                    ns: began,
                    value: 0,
                    name: None,
                    listed: Vec::new(),
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
            let shown = |text: &[u8]| quoted(text, self.limit, false);
            let all = self.environment.is_some();
            let most = if all { usize::MAX } else { STRINGS };
            let args = info.args.iter().take(most);
            let mut args: Vec<String> = args.map(|arg| shown(arg.as_bytes())).collect();
            if args.len() < info.args.len() {
                args.push("...".to_owned());
            }
            let variables = self.environment.as_ref().map(|variables| {
                let variables = variables.iter().map(|text| shown(text.as_encoded_bytes()));
                variables.collect::<Vec<String>>().join(", ")
            });
            let mut line = self.prefix(source, task, began);
            line += &format!(
                "execve({}, [{}]",
                quoted(info.exe.as_bytes(), usize::MAX, false),
                args.join(", ")
            );
            line += &match (variables, info.variables) {
                (Some(variables), _) => format!(", [{variables}])"),
                (None, Some(count)) => format!(", [/* {count} vars */])"),
                (None, None) => ", [...])".to_owned(),
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

/// Appends the times of a line as strace does. `since` is the time since the previous line, in nanoseconds.
fn put_times(source: &Source, times: Times, ns: u64, since: u64, out: &mut String) {
    let since = since / 1000;
    let relative = format!("{:6}.{:06}", since / 1_000_000, since % 1_000_000);
    let Some(stamp) = times.stamp else {
        *out += &relative;
        out.push(' ');
        return;
    };
    let info = &source.trace.info;
    // The clock may start anywhere. For the beginning of the recording, both its time and the time of day are known.
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
