//! The system call events of all tasks, in the order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Deref;
use std::sync::Arc;

use hodo_abi::Isa;
use hodo_trace::syscalls::{BUFFER, EARLIER, GROUP, NAMES};
use hodo_trace::{RecordKind, Records};

use super::arg_kinds;
use crate::source::Source;

/// What an argument points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece<'p> {
    /// The number of the argument.
    pub argument: u8,
    /// See [`hodo_trace::syscalls::piece`].
    pub flags: u8,
    /// The bytes.
    pub bytes: &'p [u8],
}

/// All pieces of an event, as they were recorded.
#[derive(Debug, Clone, Default)]
pub(super) struct Pieces(Vec<u8>);

impl Pieces {
    pub fn iter(&self) -> impl Iterator<Item = Piece<'_>> {
        let mut words = Words(&self.0);
        std::iter::from_fn(move || {
            let head = words.word()?;
            let len = (head & 0xFFFF) as usize;
            let bytes = words.0.get(..len)?;
            words.0 = words.0.get(len.next_multiple_of(8)..).unwrap_or_default();
            Some(Piece {
                argument: (head >> 16) as u8,
                flags: (head >> 24) as u8,
                bytes,
            })
        })
    }
}

/// The arguments of a system call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Args {
    values: [u64; 6],
    count: u8,
}

impl Deref for Args {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.values[..usize::from(self.count)]
    }
}

/// A system call begins.
#[derive(Debug, Clone)]
pub(super) struct Enter {
    /// Index of the task.
    pub task: usize,
    /// The time in nanoseconds of the trace's clock.
    pub ns: u64,
    /// The instruction set, which says what the number means.
    pub machine: Isa,
    /// The number of the call.
    pub number: u64,
    /// Its arguments.
    pub args: Args,
    /// What the arguments point to.
    pub pieces: Pieces,
    /// How many bytes of a buffer are shown.
    pub limit: usize,
    /// If nothing is abridged: the difference in seconds between local time and UTC.
    pub whole: Option<i64>,
    /// What arguments that are descriptors refer to, by their numbers.
    pub names: Vec<(u8, Arc<str>)>,
    /// What descriptors in lists refer to.
    pub listed: Vec<(i32, Arc<str>)>,
    /// Whether it began before hodo attached, so that its time is not known.
    pub earlier: bool,
}

/// A system call ends.
#[derive(Debug, Clone)]
pub(super) struct Exit {
    /// Index of the task.
    pub task: usize,
    /// The time in nanoseconds of the trace's clock.
    pub ns: u64,
    /// Its result.
    pub value: u64,
    /// What the result refers to, if it is a descriptor.
    pub name: Option<Arc<str>>,
    /// What descriptors refer to that it created in memory.
    pub listed: Vec<(i32, Arc<str>)>,
    /// What the arguments point to.
    pub pieces: Pieces,
}

/// One event.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A task begins: its index.
    Begin(usize),
    /// A system call begins.
    Enter(Enter),
    /// A system call ends.
    Exit(Exit),
    /// A task receives a signal: the task's index, and the signal's index in the trace.
    Signal(usize, usize),
    /// A task ends: its index.
    End(usize),
}

/// What comes next of a task. If times are equal, the order of the variants decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// None of its records has been read yet.
    Unread,
    Begin,
    /// The event that has been read ahead.
    Held,
    /// A signal: the index into the trace's signals.
    Signal(usize),
    End,
}

/// All events, in the order of time.
pub(super) struct Events<'s> {
    source: &'s Source,
    machine: Isa,
    streams: Vec<Option<Records<'s>>>,
    /// The next event of each task.
    held: Vec<Option<Event>>,
    /// Tasks by the time of their next event, or of their first record if nothing has been read of them yet.
    heap: BinaryHeap<Reverse<(u64, usize, Next)>>,
    /// Something that comes before everything in the heap.
    first: Option<(u64, usize, Next)>,
    ids: [Option<u32>; 2],
}

impl<'s> Events<'s> {
    pub fn new(source: &'s Source, machine: Isa) -> Self {
        let mut heap = BinaryHeap::new();
        for &index in &source.tasks {
            let task = source.task(index);
            heap.push(Reverse((task.began, index, Next::Begin)));
            if let Some(ended) = task.ended {
                heap.push(Reverse((ended, index, Next::End)));
            }
            if let Some(begins) = source.trace.begins(task) {
                heap.push(Reverse((begins, index, Next::Unread)));
            }
        }
        for (at, signal) in source.trace.signals.iter().enumerate() {
            let mut tasks = source.tasks.iter();
            if let Some(&index) = tasks.find(|&&index| source.task(index).id == signal.id) {
                heap.push(Reverse((signal.counter, index, Next::Signal(at))));
            }
        }
        let tasks = source.tasks.iter().max().map_or(0, |&index| index + 1);
        Self {
            source,
            machine,
            streams: (0..tasks).map(|_| None).collect(),
            held: vec![None; tasks],
            heap,
            first: None,
            ids: ids(source),
        }
    }

    /// Returns the next event of a task, and its time in units of the counter.
    fn next_of(&mut self, index: usize) -> Option<(u64, Event)> {
        let source = self.source;
        let ids = self.ids;
        let records =
            self.streams[index].get_or_insert_with(|| source.trace.records(source.task(index)));
        while let Some(record) = records.next() {
            if record.kind != RecordKind::Entry {
                continue;
            }
            let enter = match Some(record.id) {
                id if id == ids[0] => true,
                id if id == ids[1] => false,
                _ => continue,
            };
            let ns = source.scale.nanoseconds(record.time);
            let event = decode(self.machine, records.payload(), enter, (index, ns));
            if let Some(event) = event {
                return Some((record.time, event));
            }
        }
        self.streams[index] = None;
        None
    }
}

impl Iterator for Events<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        loop {
            let (_, index, next) = match self.first.take() {
                Some(first) => first,
                None => self.heap.pop()?.0,
            };
            match next {
                Next::Begin => return Some(Event::Begin(index)),
                Next::End => return Some(Event::End(index)),
                Next::Signal(at) => return Some(Event::Signal(index, at)),
                Next::Unread | Next::Held => {}
            }
            let event = self.held[index].take();
            if let Some((time, next)) = self.next_of(index) {
                self.held[index] = Some(next);
                let key = (time, index, Next::Held);
                match self.heap.peek() {
                    Some(Reverse(least)) if *least < key => self.heap.push(Reverse(key)),
                    _ => self.first = Some(key),
                }
            }
            if event.is_some() {
                return event;
            }
        }
    }
}

/// Returns the ids of the events before and after calls.
pub(super) fn ids(source: &Source) -> [Option<u32>; 2] {
    let probes = &source.trace.probes;
    NAMES.map(|name| {
        let mut probes = probes.iter().filter(|probe| probe.group == GROUP);
        probes
            .find(|probe| probe.name == name)
            .map(|probe| probe.id)
    })
}

/// Decodes an event from its payload. Returns `None` if it is damaged.
pub(super) fn decode(
    machine: Isa,
    payload: &[u8],
    enter: bool,
    (task, ns): (usize, u64),
) -> Option<Event> {
    let mut words = Words(payload);
    let about = words.word()?;
    let first = words.word()?;
    if !enter {
        return Some(Event::Exit(Exit {
            task,
            ns,
            value: first,
            name: None,
            listed: Vec::new(),
            pieces: words.pieces(),
        }));
    }
    let mut args = Args::default();
    for value in &mut args.values[..arg_kinds::count(machine, first)] {
        let Some(word) = words.word() else { break };
        *value = word;
        args.count += 1;
    }
    Some(Event::Enter(Enter {
        task,
        ns,
        machine,
        number: first,
        args,
        pieces: words.pieces(),
        limit: BUFFER,
        whole: None,
        names: Vec::new(),
        listed: Vec::new(),
        earlier: about & EARLIER != 0,
    }))
}

struct Words<'p>(&'p [u8]);

impl Words<'_> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn pieces(self) -> Pieces {
        Pieces(self.0.to_vec())
    }
}
