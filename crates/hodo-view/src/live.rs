//! Views of a trace that is still being written: they show what its tasks do, in the order of time, as it happens.
//!
//! Each round reads what is new in all tasks. Another task may have done something earlier that it has not written down
//! yet, so only what is older than the beginning of the previous round is shown. An event that is being written holds
//! back all newer ones.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hodo_trace::follow::{Follow, News, Reached};
use hodo_trace::{RecordKind, TraceError};

use crate::callers::Addresses;
use crate::events::{self, EventFormat};
use crate::format::printable;
use crate::source::{Source, SourceOptions};
use crate::syscalls::{SyscallsOptions, Writer};

/// At most this many chunks of a task are read in one round. This bounds the memory.
const CHUNKS: usize = 16;

/// A moment, as the value of the time counter and in nanoseconds of the trace's clock.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// The counter.
    pub counter: u64,
    /// The clock.
    pub ns: u64,
}

/// What to show of a trace that is being written.
#[derive(Debug)]
pub enum LiveOptions {
    /// System calls.
    Syscalls(Box<SyscallsOptions>),
    /// Events of probes. Perfetto's format is not supported.
    Events(EventFormat),
}

/// The content of an event.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Begin,
    Record(u32, Vec<u8>),
    /// A signal: the index into the trace's signals.
    Signal(usize),
    End,
}

/// An event that is not shown yet: its time, the index of its task, its rank among events of the same time, a serial
/// number, and its content.
type Held = (u64, usize, u8, u64, What);

/// How events are written.
enum Kind {
    Syscalls(Box<Writer>),
    Events(EventFormat, Addresses),
}

/// A view of a trace that is being written.
pub struct Live {
    /// The trace directory.
    data: PathBuf,
    source: Source,
    follow: Follow,
    kind: Kind,
    /// What is not shown yet.
    held: BinaryHeap<Reverse<Held>>,
    count: u64,
    /// When the previous round began, in units of the counter.
    round: u64,
    /// By task: the beginning of the last round in which all its records were complete.
    complete: Vec<u64>,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").finish_non_exhaustive()
    }
}

impl Live {
    /// Opens the trace in a directory. Returns `None` if it is not there yet.
    ///
    /// # Errors
    /// If the trace cannot be read, or if the system calls of its instruction set are not known.
    pub fn open(data: &Path, options: &LiveOptions) -> Result<Option<Self>> {
        let (trace, follow) = match Follow::open(data) {
            Ok(opened) => opened,
            // The recorder creates the files one after the other.
            Err(TraceError::Missing(_) | TraceError::NotATrace(_)) => return Ok(None),
            Err(TraceError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let source = Source::growing(trace);
        let kind = match options {
            LiveOptions::Syscalls(options) => {
                let info = &source.trace.info;
                let machine = info
                    .isa()
                    .with_context(|| format!("the system calls of {:?} are unknown", info.arch))?;
                Kind::Syscalls(Box::new(Writer::new(machine, options)))
            }
            LiveOptions::Events(format) => Kind::Events(*format, Addresses::default()),
        };
        Ok(Some(Self {
            data: data.to_owned(),
            source,
            follow,
            kind,
            held: BinaryHeap::new(),
            count: 0,
            round: 0,
            complete: Vec::new(),
        }))
    }

    /// Shows what has come. `now` is the present moment; with `None` the recording is over, and everything is shown.
    /// Returns whether there was anything new, or more can be read at once.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn round(&mut self, now: Option<Now>, out: &mut dyn Write) -> Result<bool> {
        if let (Some(now), Some(sample)) = (now, self.source.trace.info.clock.samples.get_mut(1)) {
            (sample.counter, sample.ns) = (now.counter, now.ns);
            self.source.scale = self.source.trace.scale();
        }
        let shown = self.read_log();
        let mut until = now.map_or(u64::MAX, |_| self.round);
        let before = self.count;
        let mut more = false;
        for task in 0..self.source.trace.tasks.len() {
            let (held, count) = (&mut self.held, &mut self.count);
            let reached = self
                .follow
                .take(&self.source.trace, task, CHUNKS, |record, payload| {
                    // Which records are events is decided when they are shown: the log may announce a probe after its
                    // first record is read.
                    if record.kind == RecordKind::Entry {
                        *count += 1;
                        let what = What::Record(record.id, payload.to_vec());
                        held.push(Reverse((record.time, task, 1, *count, what)));
                    }
                });
            match reached {
                Reached::End => self.complete[task] = now.map_or(u64::MAX, |now| now.counter),
                // A task that was killed writes no more.
                Reached::Busy(_) if self.source.trace.tasks[task].ended.is_some() => {}
                Reached::More(time) => {
                    more = true;
                    until = until.min(time);
                }
                // The unfinished record is newer than the last round in which the task's records were complete, and
                // newer than its last record.
                Reached::Busy(time) if now.is_some() => {
                    until = until.min(self.complete[task].max(time));
                }
                Reached::Busy(_) => {}
            }
        }
        if !self.source.timed() {
            until = u64::MAX;
        }
        let found = self.count > before;
        let written = self.show(until, out)?;
        if let (Kind::Syscalls(writer), true) = (&mut self.kind, until < u64::MAX) {
            let ns = self.source.scale.nanoseconds(until);
            writer.wait(&self.source, ns, out)?;
        }
        self.round = now.map_or(u64::MAX, |now| now.counter);
        Ok(shown || more || found || written)
    }

    /// Reads what is new in the log. Returns whether there is anything.
    fn read_log(&mut self) -> bool {
        let news = self.follow.news(&mut self.source.trace);
        let any = !news.is_empty();
        let mut mapped = false;
        for news in news {
            let trace = &mut self.source.trace;
            let (time, task, order, what) = match news {
                News::Began(task) => {
                    let name = std::mem::take(&mut trace.tasks[task].comm);
                    trace.tasks[task].comm = printable(name);
                    self.source.tasks.push(task);
                    (trace.tasks[task].began, task, 0, What::Begin)
                }
                News::Ended(task) => {
                    let ended = trace.tasks[task].ended.unwrap_or(trace.tasks[task].began);
                    (ended, task, 3, What::End)
                }
                News::Signal(at) => {
                    let signal = &trace.signals[at];
                    let Some(task) = (signal.id as usize).checked_sub(1) else {
                        continue;
                    };
                    (signal.counter, task, 2, What::Signal(at))
                }
                News::Named(task) => {
                    let name = std::mem::take(&mut trace.tasks[task].comm);
                    trace.tasks[task].comm = printable(name);
                    continue;
                }
                News::Mapped => {
                    mapped = true;
                    continue;
                }
            };
            self.count += 1;
            self.held
                .push(Reverse((time, task, order, self.count, what)));
        }
        if any {
            self.complete.resize(self.source.trace.tasks.len(), 0);
        }
        if let Kind::Events(_, addresses) = &mut self.kind
            && mapped
        {
            addresses.update(&self.source);
        }
        any
    }

    /// Shows what is older than a time of the counter. Returns whether there was anything.
    fn show(&mut self, until: u64, out: &mut dyn Write) -> Result<bool> {
        let mut any = false;
        while let Some(Reverse((time, ..))) = self.held.peek()
            && *time < until
            && let Some(Reverse((time, task, _, _, what))) = self.held.pop()
        {
            any = true;
            let ns = self.source.scale.nanoseconds(time);
            match (&mut self.kind, what) {
                (Kind::Syscalls(writer), what) => {
                    let source = &self.source;
                    match what {
                        What::Begin => writer.begin(source, task, out)?,
                        What::End => writer.end(source, task, out)?,
                        What::Signal(at) => writer.signal(source, task, at, out)?,
                        What::Record(id, payload) => {
                            writer.record(source, (task, ns), (id, &payload), out)?;
                        }
                    }
                }
                (Kind::Events(format, addresses), What::Record(id, payload)) => {
                    let payload = crate::stream::words(&payload);
                    let at = (task, ns);
                    events::one((&self.source, addresses), at, (id, &payload), *format, out)?;
                }
                (Kind::Events(..), _) => {}
            }
        }
        Ok(any)
    }

    /// The recording is over: shows the rest, and whatever else the trace reports.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn finish(mut self, out: &mut dyn Write) -> Result<()> {
        while self.round(None, out)? {}
        if let Kind::Syscalls(writer) = &mut self.kind {
            writer.finish(&self.source, out)?;
        }
        out.flush()?;
        // Opening the trace reports damage and the recorder's remarks.
        Source::open(&SourceOptions {
            data: self.data,
            ..SourceOptions::default()
        })?;
        Ok(())
    }
}
