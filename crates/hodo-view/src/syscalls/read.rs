//! Events of system calls, of all tasks in the order of time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use hodo_trace::syscalls::{GROUP, NAMES, by_number};
use hodo_trace::{RecordKind, Records};

use crate::source::Source;

/// What an argument points to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece {
    /// The number of the argument.
    pub argument: u8,
    /// See [`hodo_trace::syscalls::piece`].
    pub flags: u8,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A system call begins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Enter {
    /// Index of the task.
    pub task: usize,
    /// Nanoseconds of the trace's clock.
    pub ns: u64,
    /// Its number.
    pub number: u64,
    /// Its arguments.
    pub args: Vec<u64>,
    /// What they point to.
    pub pieces: Vec<Piece>,
}

/// A system call ends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Exit {
    /// Index of the task.
    pub task: usize,
    /// Nanoseconds of the trace's clock.
    pub ns: u64,
    /// Its result.
    pub value: u64,
    /// What the arguments point to.
    pub pieces: Vec<Piece>,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A task begins; its index.
    Begin(usize),
    /// A system call begins.
    Enter(Enter),
    /// A system call ends.
    Exit(Exit),
    /// A task ends; its index.
    End(usize),
}

/// All events in the order of time.
pub(super) struct Events<'s> {
    source: &'s Source,
    streams: HashMap<usize, Records<'s>>,
    /// Tasks by the time of their next event; those of which nothing was read yet, by that of their first record.
    heap: BinaryHeap<Reverse<(u64, usize, Option<Event>)>>,
    ids: [Option<u32>; 2],
}

impl<'s> Events<'s> {
    pub fn new(source: &'s Source) -> Self {
        let probes = &source.trace.probes;
        let id = |name| {
            let mut probes = probes.iter().filter(|probe| probe.group == GROUP);
            probes
                .find(|probe| probe.name == name)
                .map(|probe| probe.id)
        };
        let mut heap = BinaryHeap::new();
        for &index in &source.tasks {
            let task = source.task(index);
            heap.push(Reverse((task.began, index, Some(Event::Begin(index)))));
            if let Some(ended) = task.ended {
                heap.push(Reverse((ended, index, Some(Event::End(index)))));
            }
            if let Some(begins) = source.trace.begins(task) {
                heap.push(Reverse((begins, index, None)));
            }
        }
        Self {
            source,
            streams: HashMap::new(),
            heap,
            ids: NAMES.map(id),
        }
    }

    /// The next event of a task, and its time in the counter's units.
    fn next_of(&mut self, index: usize) -> Option<(u64, Event)> {
        let source = self.source;
        let ids = self.ids;
        let records = self
            .streams
            .entry(index)
            .or_insert_with(|| source.trace.records(source.task(index)));
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
            let event = decode(records.payload(), enter, index, ns);
            if let Some(event) = event {
                return Some((record.time, event));
            }
        }
        self.streams.remove(&index);
        None
    }
}

impl Iterator for Events<'_> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        loop {
            let Reverse((_, index, event)) = self.heap.pop()?;
            if !matches!(event, Some(Event::Begin(_) | Event::End(_)))
                && let Some((time, next)) = self.next_of(index)
            {
                self.heap.push(Reverse((time, index, Some(next))));
            }
            if event.is_some() {
                return event;
            }
        }
    }
}

/// An event from its payload. `None`: it is damaged.
fn decode(payload: &[u8], enter: bool, task: usize, ns: u64) -> Option<Event> {
    let mut words = Words(payload.get(8..)?);
    let first = words.word()?;
    if !enter {
        let pieces = words.pieces();
        return Some(Event::Exit(Exit {
            task,
            ns,
            value: first,
            pieces,
        }));
    }
    let count = match by_number(first).and_then(|call| call.args()) {
        Some(args) => args.count(),
        None => 6,
    };
    let args = (0..count).map_while(|_| words.word()).collect();
    let pieces = words.pieces();
    Some(Event::Enter(Enter {
        task,
        ns,
        number: first,
        args,
        pieces,
    }))
}

struct Words<'p>(&'p [u8]);

impl Words<'_> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn pieces(mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while let Some(head) = self.word() {
            let len = (head & 0xFFFF) as usize;
            let Some(bytes) = self.0.get(..len) else {
                break;
            };
            pieces.push(Piece {
                argument: (head >> 16) as u8,
                flags: (head >> 24) as u8,
                bytes: bytes.to_vec(),
            });
            self.0 = self.0.get(len.next_multiple_of(8)..).unwrap_or_default();
        }
        pieces
    }
}
