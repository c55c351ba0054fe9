//! The events of probes, in order of time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::Write;

use anyhow::Result;
use hodo_trace::meta::{Arg, Probe};
use hodo_trace::{RecordKind, Records, Task};
use serde_json::{Map, json};

use crate::callers::{Addresses, Chain, Located, Stack};
use crate::format::printable;
use crate::source::{Source, SourceOptions};
use crate::values::{self, Shown};

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventFormat {
    /// Lines as ftrace has them.
    #[default]
    Text,
    /// An object for each event, one in a line.
    Json,
    /// Perfetto's trace format, counters included: binary.
    Perfetto,
}

/// What to show of a trace.
#[derive(Debug, Clone, Default)]
pub struct EventOptions {
    /// Which trace, and which part of it. Only `tids` and `range` are used.
    pub source: SourceOptions,
    /// The output format.
    pub format: EventFormat,
}

/// Shows the events of all probes, as text or as JSON.
pub(crate) fn lines(options: &EventOptions, out: &mut dyn Write) -> Result<()> {
    let source = Source::open(&options.source)?;
    walk(&source, |_, line| match options.format {
        EventFormat::Text => line.text(out),
        _ => line.json(out),
    })
}

/// Goes through the hits of all probes in the order of time, with the index of the task that made each.
pub(crate) fn walk(
    source: &Source,
    mut each: impl FnMut(usize, &mut Line<'_>) -> Result<()>,
) -> Result<()> {
    let probes: HashMap<u32, &Probe> = source.trace.probes.iter().map(|p| (p.id, p)).collect();
    let addresses = Addresses::new(source);
    let mut streams: HashMap<usize, Records<'_>> = HashMap::new();
    // Tasks by the time of their next event, or of their first record if nothing has been read of them yet.
    let mut heap: BinaryHeap<_> = source
        .tasks
        .iter()
        .filter_map(|&index| {
            Some(Reverse((
                source.trace.begins(source.task(index))?,
                index,
                None,
            )))
        })
        .collect();
    while let Some(Reverse((time, index, event))) = heap.pop() {
        let task = source.task(index);
        if let Some(Event { id, payload }) = event {
            let ns = source.scale.nanoseconds(time);
            if ns > source.range.last {
                break;
            }
            if let Some(probe) = probes.get(&id)
                && ns >= source.range.first
            {
                let mut line = Line {
                    source,
                    task,
                    ns,
                    probe,
                    payload: &payload,
                    addresses: &addresses,
                };
                each(index, &mut line)?;
            }
        }
        let records = streams
            .entry(index)
            .or_insert_with(|| source.trace.records(task));
        let next = loop {
            let Some(record) = records.next() else {
                break None;
            };
            if record.kind == RecordKind::Entry && probes.contains_key(&record.id) {
                let payload = records
                    .payload()
                    .chunks_exact(8)
                    .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
                    .collect();
                break Some((record.time, record.id, payload));
            }
        };
        match next {
            Some((time, id, payload)) => {
                heap.push(Reverse((time, index, Some(Event { id, payload }))));
            }
            None => drop(streams.remove(&index)),
        }
    }
    Ok(())
}

/// Writes one hit of a probe: the index of its task, its time in nanoseconds, the probe's id, and the payload.
pub(crate) fn one(
    (source, addresses): (&Source, &Addresses),
    (task, ns): (usize, u64),
    (id, payload): (u32, &[u64]),
    format: EventFormat,
    out: &mut dyn Write,
) -> Result<()> {
    let Some(probe) = source.trace.probes.iter().find(|probe| probe.id == id) else {
        return Ok(());
    };
    let line = Line {
        source,
        task: source.task(task),
        ns,
        probe,
        payload,
        addresses,
    };
    match format {
        EventFormat::Text => line.text(out),
        _ => line.json(out),
    }
}

/// Returns the displayed name of a probe's function.
pub(crate) fn symbol(name: &str) -> String {
    printable(hodo_symbols::demangle(name, hodo_symbols::Style::Simple))
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    id: u32,
    payload: Vec<u64>,
}

/// The hit of a probe.
pub(crate) struct Line<'a> {
    source: &'a Source,
    task: &'a Task,
    /// The time, in nanoseconds of the trace's clock.
    pub ns: u64,
    /// The probe.
    pub probe: &'a Probe,
    payload: &'a [u64],
    addresses: &'a Addresses,
}

impl Line<'_> {
    /// Returns the processor, if it was recorded.
    pub fn cpu(&self) -> Option<u32> {
        let upper = (self.payload.first()? >> 32) as u32;
        // The lower bits of TSC_AUX, as Linux sets it; the others are the node.
        (upper != u32::MAX).then_some(upper & 0xFFF)
    }

    /// Formats the function and the offset. A return shows where it came from and where it went.
    pub fn place(&self) -> String {
        let symbol = symbol(&self.probe.symbol);
        match self.caller() {
            Some(caller) => {
                let at = (self.task, self.ns);
                let located = self.addresses.locate(self.source, at, caller, false);
                let caller = located.symbol().unwrap_or_else(|| format!("{caller:#x}"));
                format!("{caller} <- {symbol}")
            }
            None => format!("{symbol}+{:#x}", self.probe.offset),
        }
    }

    /// Returns the address that the function returns to, if this is a return.
    fn caller(&self) -> Option<u64> {
        self.payload.get(1..)?.get(self.probe.caller?).copied()
    }

    fn text(&self, out: &mut dyn Write) -> Result<()> {
        let task = self.task;
        write!(out, "{:>16}-{:<7} ", task.comm, task.tid)?;
        match self.cpu() {
            Some(cpu) => write!(out, "[{cpu:03}] ")?,
            None => write!(out, "[...] ")?,
        }
        if self.source.timed() {
            let us = self.ns / 1000;
            write!(out, "{:5}.{:06}: ", us / 1_000_000, us % 1_000_000)?;
        }
        write!(out, "{}:", self.probe.name)?;
        // System calls are made at many places.
        if !self.probe.symbol.is_empty() {
            write!(out, " ({})", self.place())?;
        }
        self.arguments(out)?;
        if let Some(chain) = self.chain() {
            writeln!(out, " <stack trace>")?;
            for frame in &chain.frames {
                writeln!(out, " => {}", frame.text())?;
            }
            if !chain.complete {
                writeln!(out, " => ...")?;
            }
            return Ok(());
        }
        if let Some(bytes) = self.snapshot() {
            writeln!(out, " <snapshot of {} bytes>", bytes.len())?;
            return dump(&bytes, out);
        }
        writeln!(out)?;
        Ok(())
    }

    /// Writes the arguments, each after a space.
    fn arguments(&self, out: &mut dyn Write) -> Result<()> {
        for arg in self.values() {
            write!(out, " {}=", arg.name)?;
            self.value(arg).text(out)?;
        }
        Ok(())
    }

    fn json(&self, out: &mut dyn Write) -> Result<()> {
        let mut args = Map::new();
        for arg in self.values() {
            args.insert(arg.name.clone(), self.value(arg).json());
        }
        if let Some(chain) = self.chain() {
            let frames: Vec<_> = chain.frames.iter().map(Located::json).collect();
            args.insert("stacktrace".to_owned(), frames.into());
            args.insert("complete".to_owned(), chain.complete.into());
        } else if let Some(bytes) = self.snapshot() {
            args.insert("stack".to_owned(), hex(&bytes).into());
        }
        let mut line = json!({
            "time_ns": self.source.timed().then_some(self.ns), "comm": self.task.comm, "pid": self.task.pid,
            "tid": self.task.tid, "cpu": self.cpu(), "group": self.probe.group, "name": self.probe.name,
            "symbol": self.probe.symbol, "offset": self.probe.offset, "args": args,
        });
        if let Some(caller) = self.caller() {
            line["caller"] = caller.into();
        }
        writeln!(out, "{line}")?;
        Ok(())
    }

    /// Returns the probe's arguments, except bytes of the stack.
    pub fn values(&self) -> &[Arg] {
        let args = &self.probe.args;
        let values = args.len() - usize::from(self.copy().is_some());
        &args[..values]
    }

    /// Returns the argument with bytes of the stack, if there is one: the last.
    fn copy(&self) -> Option<&Arg> {
        let has_copy = match self.probe.kind.as_deref() {
            Some("snapshot") => true,
            Some("stacktrace") => self.probe.stack.is_none(),
            _ => false,
        };
        self.probe.args.last().filter(|_| has_copy)
    }

    /// Returns what the event holds of the stack, in one line, and what it is called.
    pub fn stack(&self) -> Option<(&'static str, Shown)> {
        if let Some(chain) = self.chain() {
            let names: Vec<_> = chain.frames.iter().map(Located::text).collect();
            return Some(("stacktrace", Shown::Text(names.join(" <- ").into_bytes())));
        }
        let bytes = self.snapshot()?;
        Some(("stack", Shown::Text(hex(&bytes).into_bytes())))
    }

    /// Returns the value of one of the probe's arguments.
    pub fn value(&self, arg: &Arg) -> Shown {
        let symbol = |addr| {
            let at = (self.task, self.ns);
            self.addresses.locate(self.source, at, addr, false).symbol()
        };
        let shown = values::value(arg, self.payload, &symbol);
        shown.unwrap_or_else(|| match arg.comm {
            true => Shown::Text(self.task.comm.clone().into_bytes()),
            false => Shown::Fault,
        })
    }

    /// Returns the chain of callers, if this is a stack trace.
    fn chain(&self) -> Option<Chain> {
        if self.probe.kind.as_deref() != Some("stacktrace") {
            return None;
        }
        let words = self.payload.get(1..)?;
        let registers = words.get(self.probe.registers..)?;
        let stack = match self.probe.stack {
            Some(word) => Stack::unpack(words.get(word..).unwrap_or_default()),
            None => self.copied_stack()?,
        };
        let at = (self.task, self.ns);
        Some(self.addresses.chain(self.source, at, registers, &stack))
    }

    /// Returns the stack and its shadow, if this is a stack trace with copies of them.
    fn copied_stack(&self) -> Option<Stack> {
        let arg = self.copy()?;
        let stack = values::bytes(arg, self.payload);
        let shadow = self.probe.shadow.map_or_else(Vec::new, |word| {
            let word = Some(word);
            values::bytes(
                &Arg {
                    word,
                    ..arg.clone()
                },
                self.payload,
            )
        });
        Some(Stack::Copied(stack, shadow))
    }

    /// Returns the bytes of the stack, if this is a snapshot.
    fn snapshot(&self) -> Option<Vec<u8>> {
        let is = self.probe.kind.as_deref() == Some("snapshot");
        let arg = self.copy().filter(|_| is)?;
        Some(values::bytes(arg, self.payload))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes bytes in lines of sixteen.
fn dump(bytes: &[u8], out: &mut dyn Write) -> Result<()> {
    for (line, bytes) in bytes.chunks(16).enumerate() {
        let hex: String = bytes.iter().map(|byte| format!(" {byte:02x}")).collect();
        let shown = |&byte: &u8| match byte {
            b' '..=b'~' => char::from(byte),
            _ => '.',
        };
        let text: String = bytes.iter().map(shown).collect();
        writeln!(out, "    +{:04x}:{hex:<48}  |{text}|", line * 16)?;
    }
    Ok(())
}

/// Returns a hit as a comment among calls: its name and its values. `task` is an index into the tasks that are shown.
pub(crate) fn comment(
    (source, addresses): (&Source, &Addresses),
    (task, id): (usize, u32),
    ns: u64,
    payload: &[u64],
) -> String {
    let Some(probe) = source.probe(id) else {
        return source.label(id).to_owned();
    };
    let line = Line {
        source,
        task: source.task(source.tasks[task]),
        ns,
        probe,
        payload,
        addresses,
    };
    let mut text = probe.name.clone().into_bytes();
    if !line.values().is_empty() {
        text.push(b':');
        // Writing to memory does not fail.
        let _ = line.arguments(&mut text);
    }
    if let Some(chain) = line.chain() {
        let names: Vec<_> = chain.frames.iter().map(Located::text).collect();
        text.extend(format!(": {}", names.join(" <- ")).into_bytes());
        if !chain.complete {
            text.extend(b" <- ?");
        }
    } else if let Some(bytes) = line.snapshot() {
        text.extend(format!(": {} bytes of the stack", bytes.len()).into_bytes());
    }
    // The text must not end the comment.
    String::from_utf8_lossy(&text).replace("*/", "* /")
}
