//! System calls, as strace shows them.

mod apart;
mod arg_kinds;
mod args;
mod descriptors;
mod errors;
mod filter;
mod json;
mod lines;
mod names;
mod plain;
mod pointed;
mod read;
mod result;
mod signals;
mod sockets;
mod structs;
mod summary;
mod text;
mod whole;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};

use hodo_abi::Isa;

use crate::source::{Source, SourceOptions};
use apart::Apart;
use descriptors::Descriptors;
pub use descriptors::{DescriptorNames, followed_syscalls};
pub use filter::chosen_syscalls;
use json::Objects;
use lines::Lines;
pub use plain::{plain_call, plain_result, signal_name};
use read::{Event, Events};
pub use sockets::SocketQueries;

/// How system calls are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyscallsFormat {
    /// Lines as strace has them.
    #[default]
    Text,
    /// An object for each call, one in a line.
    Json,
}

/// A time at the beginning of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stamp {
    /// The time of day, whole seconds.
    Seconds,
    /// The time of day.
    Microseconds,
    /// Seconds since 1970.
    Unix,
}

/// The times that a line has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// The time at which the call began.
    pub stamp: Option<Stamp>,
    /// The time since the beginning of the call in the line before.
    pub relative: bool,
    /// The time that the call took.
    pub spent: bool,
    /// The difference in seconds between local time and UTC, for the time of day.
    pub utc_offset: i64,
}

/// What to show of a trace.
#[derive(Debug, Clone, Default)]
pub struct SyscallsOptions {
    /// Which trace, and which part of it. Only `tids` is used.
    pub source: SourceOptions,
    /// The output format.
    pub format: SyscallsFormat,
    /// A table instead of the calls.
    pub summary: bool,
    /// Begins each line with a thread id, even while there is only one thread.
    pub numbered: bool,
    /// The numbers of the calls that are shown. `None` means all. This also decides whether the program's own start is
    /// shown.
    pub only: Option<Vec<u64>>,
    /// Shows what descriptors refer to. The calls of [`followed_syscalls`] are then recorded, too, but shown only if
    /// they are among `only`.
    pub names: DescriptorNames,
    /// Answers questions about sockets whose descriptors are shown.
    pub queries: Option<SocketQueries>,
    /// The times that lines have.
    pub times: Times,
    /// How many bytes of a buffer are shown, if not the usual number.
    pub limit: Option<usize>,
    /// Shows structures and environments whole. This is the environment of the program.
    pub environment: Option<Vec<OsString>>,
    /// Writes the calls of each thread to a file of its own: this path with a dot and the thread's id at its end.
    pub apart: Option<PathBuf>,
}

impl SyscallsOptions {
    /// Returns whether the kernel is asked about descriptors, which should happen soon after each call.
    #[must_use]
    pub fn asks_kernel(&self) -> bool {
        self.names == DescriptorNames::Protocols
    }
}

/// Shows the system calls of a trace.
///
/// # Errors
/// If the trace cannot be read, the system calls of its instruction set are not known, or `out` cannot be written.
pub fn syscalls(options: &SyscallsOptions, out: &mut dyn Write) -> Result<()> {
    let source = Source::open(&options.source)?;
    let info = &source.trace.info;
    let unknown = || format!("the system calls of {:?} are unknown", info.arch);
    let machine = info.isa().with_context(unknown)?;
    if options.summary {
        return summary::summary(
            (&source, machine),
            options.format,
            first(options, machine),
            out,
        );
    }
    let mut writer = Writer::new(machine, options);
    for event in Events::new(&source, machine) {
        writer.event(&source, event, out)?;
    }
    writer.finish(&source, out)
}

/// Returns whether the program's own start is shown.
fn first(options: &SyscallsOptions, machine: Isa) -> bool {
    let execve = hodo_trace::syscalls::number(machine, "execve");
    match (&options.only, execve) {
        (Some(only), Some(execve)) => only.contains(&execve),
        _ => true,
    }
}

/// Writes calls as they become known.
pub(crate) struct Writer {
    machine: Isa,
    form: Form,
    /// The files of the threads, if each has its own.
    apart: Option<Apart>,
    /// The ids of the events before and after calls, as soon as they are known.
    ids: [Option<u32>; 2],
    /// How many bytes of a buffer are shown.
    limit: Option<usize>,
    /// If nothing is abridged: the difference in seconds between local time and UTC.
    whole: Option<i64>,
    /// What descriptors refer to.
    descriptors: Option<Descriptors>,
}

enum Form {
    Lines(Box<Lines>),
    Objects(Objects),
}

impl Form {
    fn new(machine: Isa, options: &SyscallsOptions) -> Self {
        match options.format {
            SyscallsFormat::Text => {
                Self::Lines(Box::new(Lines::new(options, first(options, machine))))
            }
            SyscallsFormat::Json => Self::Objects(Objects::default()),
        }
    }

    fn event(&mut self, source: &Source, event: Event, out: &mut dyn Write) -> Result<()> {
        match self {
            Self::Lines(lines) => lines.event(source, event, out),
            Self::Objects(objects) => objects.event(source, event, out),
        }
    }

    fn finish(&mut self, source: &Source, out: &mut dyn Write) -> Result<()> {
        match self {
            Self::Lines(lines) => lines.finish(source, out),
            Self::Objects(objects) => objects.finish(source, out),
        }
    }
}

impl Writer {
    pub fn new(machine: Isa, options: &SyscallsOptions) -> Self {
        Self {
            machine,
            form: Form::new(machine, options),
            apart: (options.apart.clone()).map(|path| Apart::new(path, machine, options)),
            ids: [None; 2],
            limit: options.limit,
            whole: (options.environment.as_ref()).map(|_| options.times.utc_offset),
            descriptors: (options.names != DescriptorNames::None)
                .then(|| Descriptors::new(options.only.clone(), options.names, options.queries)),
        }
    }

    fn event(&mut self, source: &Source, mut event: Event, out: &mut dyn Write) -> Result<()> {
        if let Event::Enter(enter) = &mut event {
            enter.limit = self.limit.unwrap_or(enter.limit);
            enter.whole = self.whole;
        }
        if let Some(descriptors) = &mut self.descriptors {
            let is_shown = match &mut event {
                Event::Begin(task) => {
                    descriptors.begin(source, *task);
                    true
                }
                Event::Enter(enter) => descriptors.enter(source, enter),
                Event::Exit(exit) => descriptors.exit(source, exit),
                Event::Signal(..) | Event::End(_) => true,
            };
            if !is_shown {
                return Ok(());
            }
        }
        match &mut self.apart {
            Some(apart) => apart.event(source, event),
            None => self.form.event(source, event, out),
        }
    }

    /// Takes a record of a task.
    pub fn record(
        &mut self,
        source: &Source,
        at: (usize, u64),
        (id, payload): (u32, &[u8]),
        out: &mut dyn Write,
    ) -> Result<()> {
        if self.ids[1].is_none() {
            self.ids = read::ids(source);
        }
        let enter = match Some(id) {
            id if id == self.ids[0] => true,
            id if id == self.ids[1] => false,
            _ => return Ok(()),
        };
        match read::decode(self.machine, payload, enter, at) {
            Some(event) => self.event(source, event, out),
            None => Ok(()),
        }
    }

    /// Takes the beginning of a task.
    pub fn begin(&mut self, source: &Source, task: usize, out: &mut dyn Write) -> Result<()> {
        self.event(source, Event::Begin(task), out)
    }

    /// Takes the end of a task.
    pub fn end(&mut self, source: &Source, task: usize, out: &mut dyn Write) -> Result<()> {
        self.event(source, Event::End(task), out)
    }

    /// Takes a signal that a task received.
    pub fn signal(
        &mut self,
        source: &Source,
        task: usize,
        at: usize,
        out: &mut dyn Write,
    ) -> Result<()> {
        self.event(source, Event::Signal(task, at), out)
    }

    /// Writes what is left, when nothing more will come.
    pub fn finish(&mut self, source: &Source, out: &mut dyn Write) -> Result<()> {
        match &mut self.apart {
            Some(apart) => apart.finish(source),
            None => self.form.finish(source, out),
        }
    }

    /// Shows a call that has not ended for a long time. Everything before `ns` is known.
    pub fn wait(&mut self, source: &Source, ns: u64, out: &mut dyn Write) -> Result<()> {
        match &mut self.form {
            // In a file of its own, nothing comes between the beginning of a call and its end.
            Form::Lines(lines) if self.apart.is_none() => lines.wait(source, ns, out),
            Form::Lines(_) | Form::Objects(_) => Ok(()),
        }
    }
}
