//! Perfetto's own trace format, which ui.perfetto.dev and its trace processor read: protocol buffers.
//!
//! A trace is a sequence of packets. Some describe tracks: each process and each thread has one. The others are events
//! on a track: the beginning and the end of a call, or a probe's hit. The name of an event is written once and referred
//! to by a number from then on.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use anyhow::Result;
use hodo_trace::{CallStep, Entered, FunctionKind};

use crate::counters::Counters;
use crate::events::{Line, walk};
use crate::source::{Source, SourceOptions};
use crate::stream::Merged;
use crate::values::{Shown, marked};

/// Numbers of the fields that are written, as in the format's definition.
mod field {
    /// `Trace.packet`
    pub const PACKET: u32 = 1;

    /// Of a `TracePacket`.
    pub const TIMESTAMP: u32 = 8;
    pub const SEQUENCE: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const INTERNED: u32 = 12;
    pub const SEQUENCE_FLAGS: u32 = 13;
    pub const TRACK: u32 = 60;

    /// Of a `TrackDescriptor`.
    pub const UUID: u32 = 1;
    pub const TRACK_NAME: u32 = 2;
    pub const PROCESS: u32 = 3;
    pub const THREAD: u32 = 4;
    pub const COUNTER: u32 = 8;

    /// Of a `ProcessDescriptor` and a `ThreadDescriptor`.
    pub const PID: u32 = 1;
    pub const TID: u32 = 2;
    pub const THREAD_NAME: u32 = 5;
    pub const PROCESS_NAME: u32 = 6;

    /// Of a `TrackEvent`.
    pub const ANNOTATION: u32 = 4;
    pub const TYPE: u32 = 9;
    pub const NAME_ID: u32 = 10;
    pub const TRACK_UUID: u32 = 11;
    pub const CATEGORY: u32 = 22;
    pub const COUNTER_VALUE: u32 = 30;

    /// Of a `DebugAnnotation`.
    pub const BOOL: u32 = 2;
    pub const UNSIGNED: u32 = 3;
    pub const SIGNED: u32 = 4;
    pub const DOUBLE: u32 = 5;
    pub const STRING: u32 = 6;
    pub const POINTER: u32 = 7;
    pub const ANNOTATION_NAME: u32 = 10;

    /// `InternedData.event_names`, and its fields.
    pub const EVENT_NAMES: u32 = 2;
    pub const IID: u32 = 1;
    pub const NAME: u32 = 2;
}

/// `TrackEvent.type`.
const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;
const VALUE: u64 = 4;

/// A message of the encoding: numbered fields.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value > 0x7F {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u32, value: u64) -> &mut Self {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    fn double(&mut self, field: u32, value: f64) -> &mut Self {
        const FIXED64: u64 = 1;
        self.varint(u64::from(field) << 3 | FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) -> &mut Self {
        const LENGTH_DELIMITED: u64 = 2;
        self.varint(u64::from(field) << 3 | LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// Strings in this format are UTF-8.
    fn string(&mut self, field: u32, text: &[u8]) -> &mut Self {
        self.bytes(field, String::from_utf8_lossy(text).as_bytes())
    }
}

/// Writes packets.
pub(crate) struct Packets<'a> {
    out: &'a mut dyn Write,
    /// The numbers given to the names of events.
    names: HashMap<String, u64>,
    /// By index of a task: the first task of its thread, which identifies the track.
    threads: Vec<usize>,
    /// By track: the task that made its last event, and the number of its open calls.
    open: HashMap<usize, (usize, usize)>,
    first: bool,
}

impl<'a> Packets<'a> {
    /// Begins a trace by describing the processes and threads.
    pub fn new(source: &Source, out: &'a mut dyn Write) -> Result<Self> {
        let mut packets = Self {
            out,
            names: HashMap::new(),
            threads: source.threads(),
            open: HashMap::new(),
            first: true,
        };
        // A process has the name of the program that it executed last.
        let mut processes = BTreeMap::new();
        let mut threads = BTreeMap::new();
        for &index in &source.tasks {
            let task = source.task(index);
            let name = processes.entry(task.pid).or_insert(&task.comm);
            if task.pid == task.tid {
                *name = &task.comm;
            }
            threads.insert(packets.threads[index], task);
        }
        for (pid, name) in processes {
            let mut process = Message::default();
            process
                .number(field::PID, u64::from(pid.cast_unsigned()))
                .string(field::PROCESS_NAME, name.as_bytes());
            let mut track = Message::default();
            track
                .number(field::UUID, process_track(pid))
                .bytes(field::PROCESS, &process.0);
            packets.packet(None, field::TRACK, &track)?;
        }
        for (index, task) in threads {
            let mut thread = Message::default();
            thread
                .number(field::PID, u64::from(task.pid.cast_unsigned()))
                .number(field::TID, u64::from(task.tid.cast_unsigned()))
                .string(field::THREAD_NAME, task.comm.as_bytes());
            let mut track = Message::default();
            track
                .number(field::UUID, thread_track(index))
                .bytes(field::THREAD, &thread.0);
            packets.packet(None, field::TRACK, &track)?;
        }
        Ok(packets)
    }

    /// Writes a packet with one data field.
    fn packet(&mut self, time: Option<u64>, field: u32, data: &Message) -> Result<()> {
        self.packet_with(time, field, data, None)
    }

    fn packet_with(
        &mut self,
        time: Option<u64>,
        field: u32,
        data: &Message,
        new_name: Option<(u64, &str)>,
    ) -> Result<()> {
        const STATE_CLEARED: u64 = 1;
        const NEEDS_STATE: u64 = 2;
        let mut packet = Message::default();
        if let Some(time) = time {
            packet.number(field::TIMESTAMP, time);
        }
        packet.number(field::SEQUENCE, 1);
        let flags = match std::mem::replace(&mut self.first, false) {
            true => STATE_CLEARED,
            false => NEEDS_STATE,
        };
        packet.number(field::SEQUENCE_FLAGS, flags);
        if let Some((iid, name)) = new_name {
            let mut entry = Message::default();
            entry
                .number(field::IID, iid)
                .string(field::NAME, name.as_bytes());
            let mut interned = Message::default();
            interned.bytes(field::EVENT_NAMES, &entry.0);
            packet.bytes(field::INTERNED, &interned.0);
        }
        packet.bytes(field, &data.0);
        let mut whole = Message::default();
        whole.bytes(field::PACKET, &packet.0);
        Ok(self.out.write_all(&whole.0)?)
    }

    /// Writes an event on a task's track, at a time in nanoseconds.
    fn event(
        &mut self,
        ns: u64,
        index: usize,
        kind: u64,
        name: Option<(&str, &str)>,
        annotations: &[Message],
    ) -> Result<()> {
        let mut event = Message::default();
        event
            .number(field::TYPE, kind)
            .number(field::TRACK_UUID, thread_track(self.threads[index]));
        let mut new_name = None;
        if let Some((category, name)) = name {
            let next = self.names.len() as u64 + 1;
            let iid = match self.names.get(name) {
                Some(&iid) => iid,
                None => {
                    self.names.insert(name.to_owned(), next);
                    new_name = Some((next, name));
                    next
                }
            };
            event
                .number(field::NAME_ID, iid)
                .string(field::CATEGORY, category.as_bytes());
        }
        for annotation in annotations {
            event.bytes(field::ANNOTATION, &annotation.0);
        }
        self.packet_with(Some(ns), field::TRACK_EVENT, &event, new_name)
    }

    /// Keeps count of a track's open calls. Ends those that the previous program left open when it executed this one.
    fn depth(&mut self, ns: u64, index: usize, change: isize) -> Result<()> {
        let track = self.threads[index];
        let (task, depth) = self.open.get(&track).copied().unwrap_or((index, 0));
        let mut depth = depth;
        if task != index {
            for _ in 0..depth {
                self.event(ns, index, END, None, &[])?;
            }
            depth = 0;
        }
        depth = depth.saturating_add_signed(change);
        self.open.insert(track, (index, depth));
        Ok(())
    }

    /// Writes the hit of a probe.
    pub fn hit(&mut self, index: usize, line: &Line<'_>) -> Result<()> {
        let mut annotations = vec![annotation("place", &Shown::Text(line.place().into_bytes()))];
        if let Some(cpu) = line.cpu() {
            annotations.push(annotation("cpu", &Shown::Number(u64::from(cpu))));
        }
        for arg in line.values() {
            annotations.push(annotation(&arg.name, &line.value(arg)));
        }
        if let Some((name, stack)) = line.stack() {
            annotations.push(annotation(name, &stack));
        }
        let name = (line.probe.group.as_str(), line.probe.name.as_str());
        self.event(line.ns, index, INSTANT, Some(name), &annotations)
    }

    /// Writes what was counted up to the time `ns`. Each counter has its own track.
    pub fn counters(&mut self, ns: u64, counters: &Counters) -> Result<()> {
        for (number, (name, hits)) in counters.named().enumerate() {
            let uuid = COUNTERS | number as u64;
            let mut track = Message::default();
            track
                .number(field::UUID, uuid)
                .string(field::TRACK_NAME, name.as_bytes())
                .bytes(field::COUNTER, &[]);
            self.packet(None, field::TRACK, &track)?;
            let mut event = Message::default();
            event
                .number(field::TYPE, VALUE)
                .number(field::TRACK_UUID, uuid)
                .number(field::COUNTER_VALUE, hits);
            self.packet(Some(ns), field::TRACK_EVENT, &event)?;
        }
        Ok(())
    }
}

/// This bit marks the tracks of counters.
const COUNTERS: u64 = 1 << 48;

fn process_track(pid: i32) -> u64 {
    1 << 32 | u64::from(pid.cast_unsigned())
}

/// Returns the id of a thread's track. 0 is the track of events that belong to none.
fn thread_track(index: usize) -> u64 {
    index as u64 + 1
}

/// Returns a named value.
fn annotation(name: &str, value: &Shown) -> Message {
    let mut message = Message::default();
    message.string(field::ANNOTATION_NAME, name.as_bytes());
    match value {
        Shown::Number(number) => message.number(field::UNSIGNED, *number),
        Shown::Signed(number) => message.number(field::SIGNED, number.cast_unsigned()),
        Shown::Hex(number) => message.number(field::POINTER, *number),
        Shown::Char(byte) => message.string(field::STRING, &[*byte]),
        Shown::Unicode(letter) => message.string(field::STRING, letter.to_string().as_bytes()),
        Shown::Bool(is) => message.number(field::BOOL, u64::from(*is)),
        Shown::Single(_) | Shown::Double(_) => {
            message.double(field::DOUBLE, value.float().unwrap_or_default())
        }
        Shown::Text(bytes) => message.string(field::STRING, bytes),
        Shown::Cut(bytes) => message.string(field::STRING, marked(bytes).as_bytes()),
        Shown::Symbol(number, None) => message.number(field::POINTER, *number),
        Shown::Symbol(_, Some(symbol)) => message.string(field::STRING, symbol.as_bytes()),
        Shown::List(_) => {
            let mut text = Vec::new();
            // Writing to memory does not fail.
            let _ = value.text(&mut text);
            message.string(field::STRING, &text)
        }
        Shown::Fault => message.string(field::STRING, b"(fault)"),
    };
    message
}

/// Writes the hits of probes and their counts.
///
/// # Errors
/// If the trace cannot be read or `out` cannot be written.
pub(crate) fn probes(options: &SourceOptions, out: &mut dyn Write) -> Result<()> {
    let source = Source::open(options)?;
    let mut packets = Packets::new(&source, out)?;
    hits(&source, options, &mut packets, 0)
}

fn hits(
    source: &Source,
    options: &SourceOptions,
    packets: &mut Packets<'_>,
    mut last: u64,
) -> Result<()> {
    let timed = source.timed();
    let mut number = 0;
    walk(source, |index, line| {
        // In a trace without time, events are a microsecond apart.
        line.ns = if timed { line.ns } else { number * 1000 };
        number += 1;
        last = last.max(line.ns);
        packets.hit(index, line)
    })?;
    packets.counters(last, &Counters::read(&options.data)?)
}

/// Writes the calls of a trace, and the hits of its probes.
pub(crate) fn calls(source: &Source, options: &SourceOptions, out: &mut dyn Write) -> Result<()> {
    let mut packets = Packets::new(source, out)?;
    let timed = source.timed();
    let mut last = 0;
    for (number, (at, step)) in Merged::new(source).enumerate() {
        let ns = match timed {
            true => source.scale.nanoseconds(step.time()),
            false => number as u64 * 1000,
        };
        if timed && !source.range.contains(ns) {
            continue;
        }
        last = last.max(ns);
        let index = source.tasks[at];
        let named = |id: u32| Some(("call", source.label(id)));
        match step {
            CallStep::Enter { id, entered, .. } => {
                packets.depth(ns, index, 1)?;
                let how = annotation("call", &Shown::Text(b"tail call".to_vec()));
                let how = match entered {
                    Entered::Jumped => &[how][..],
                    _ => &[],
                };
                packets.event(ns, index, BEGIN, named(id), how)?;
            }
            CallStep::Leave { .. } => {
                packets.depth(ns, index, -1)?;
                packets.event(ns, index, END, None, &[])?;
            }
            CallStep::Instant { id, .. } => {
                // Hits of probes are written below, with their values.
                let is_probe = |kind| kind == FunctionKind::Probe;
                if !source.trace.function(id).is_some_and(|f| is_probe(f.kind)) {
                    packets.depth(ns, index, 0)?;
                    packets.event(ns, index, INSTANT, named(id), &[])?;
                }
            }
            CallStep::Lost { count, .. } => {
                let count = annotation("count", &Shown::Number(count));
                packets.event(ns, index, INSTANT, Some(("hodo", "lost records")), &[count])?;
            }
        }
    }
    hits(source, options, &mut packets, last)
}
