//! The events of probes, in the order of time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use hodo_trace::meta::{Arg, Probe};
use hodo_trace::{RecordKind, Records, Task};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::perfetto;
use crate::source::{Source, SourceOptions};

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

/// What of a trace.
#[derive(Debug, Clone, Default)]
pub struct EventOptions {
    /// Which trace, and what of it: `tids` and `range` count.
    pub source: SourceOptions,
    /// The form.
    pub format: EventFormat,
}

/// What an event tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shown {
    Number(u64),
    Signed(i64),
    Hex(u64),
    Char(u8),
    Text(Vec<u8>),
    Fault,
}

/// Shows the events of all probes.
///
/// # Errors
/// If the trace cannot be read or `out` cannot be written.
pub fn events(options: &EventOptions, out: &mut dyn Write) -> Result<()> {
    if options.format == EventFormat::Perfetto {
        return perfetto::probes(&options.source, out);
    }
    let source = Source::open(&options.source)?;
    walk(&source, |_, line| match options.format {
        EventFormat::Text => line.text(out),
        _ => line.json(out),
    })
}

/// Goes through the hits of all probes in the order of time, with the indices of the tasks that made them.
pub(crate) fn walk(
    source: &Source,
    mut each: impl FnMut(usize, &mut Line<'_>) -> Result<()>,
) -> Result<()> {
    let probes: HashMap<u32, &Probe> = source.trace.probes.iter().map(|p| (p.id, p)).collect();
    let mut streams: HashMap<usize, Records<'_>> = HashMap::new();
    // Tasks by the time of their next event; those of which nothing was read yet, by that of their first record.
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
            if ns > source.range.1 {
                break;
            }
            if let Some(probe) = probes.get(&id)
                && ns >= source.range.0
            {
                let mut line = Line {
                    source,
                    task,
                    ns,
                    probe,
                    payload: &payload,
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

/// A counter as `counts.json` has it.
#[derive(Debug, Deserialize)]
struct Count {
    group: String,
    name: String,
    symbol: String,
    offset: u64,
    addr: u64,
    path: String,
    #[serde(default)]
    hits: Option<u64>,
    #[serde(default)]
    nmissed: Option<u64>,
}

impl Count {
    /// Of a probe that only prints, there is something to tell if it has missed anything.
    fn tells(&self) -> bool {
        self.hits.is_some() || self.nmissed != Some(0)
    }

    /// Name and place.
    fn title(&self) -> String {
        let symbol = hodo_symbols::demangle(&self.symbol, hodo_symbols::Style::Simple);
        match self.nmissed {
            Some(_) => format!("{}: (<- {symbol})", self.name),
            None => format!("{}: ({symbol}+{:#x})", self.name, self.offset),
        }
    }
}

/// What probes have counted.
#[derive(Debug)]
pub(crate) struct Counters(Vec<Count>);

impl Counters {
    /// Those of the trace in a directory; none if nothing counts.
    pub fn read(data: &Path) -> Result<Self> {
        let path = data.join("counts.json");
        let counts = match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("{} is damaged", path.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        Ok(Self(counts))
    }

    /// Their names with their hits.
    pub fn named(&self) -> impl Iterator<Item = (String, u64)> {
        let hits = |count: &Count| Some((count.title(), count.hits?));
        self.0.iter().filter_map(hits)
    }
}

/// Shows what probes have counted. Nothing, if none does.
///
/// # Errors
/// If the counts cannot be read or `out` cannot be written.
pub fn counts(options: &EventOptions, out: &mut dyn Write) -> Result<()> {
    if options.format == EventFormat::Perfetto {
        // They are among the events.
        return Ok(());
    }
    let Counters(counts) = Counters::read(&options.source.data)?;
    if counts.is_empty() {
        return Ok(());
    }
    let counts: Vec<Count> = counts.into_iter().filter(Count::tells).collect();
    if options.format == EventFormat::Json {
        for count in counts {
            let mut line = json!({
                "group": count.group, "name": count.name, "symbol": count.symbol, "offset": count.offset,
                "addr": count.addr, "path": count.path,
            });
            for (key, number) in [("hits", count.hits), ("nmissed", count.nmissed)] {
                if let Some(number) = number {
                    line[key] = number.into();
                }
            }
            writeln!(out, "{line}")?;
        }
        return Ok(());
    }
    if counts.iter().any(|count| count.hits.is_some()) {
        writeln!(out, "        HITS  PROBE")?;
    }
    for count in counts {
        let hits = count.hits.map_or(String::new(), |hits| hits.to_string());
        write!(out, "{hits:>12}  {}", count.title())?;
        match count.nmissed {
            None | Some(0) => writeln!(out)?,
            Some(missed) => writeln!(out, ", missed: {missed}")?,
        }
    }
    Ok(())
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
    /// When, in nanoseconds of the trace's clock.
    pub ns: u64,
    /// Which probe.
    pub probe: &'a Probe,
    payload: &'a [u64],
}

impl Line<'_> {
    /// The processor, if it was recorded.
    pub fn cpu(&self) -> Option<u32> {
        let upper = (self.payload.first()? >> 32) as u32;
        // The lower bits of TSC_AUX, as Linux sets it; the others are the node.
        (upper != u32::MAX).then_some(upper & 0xFFF)
    }

    /// Function and distance from its beginning; of a return, whence it came and whither it went.
    pub fn place(&self) -> String {
        let symbol = hodo_symbols::demangle(&self.probe.symbol, hodo_symbols::Style::Simple);
        match self.caller() {
            Some(caller) => format!("{caller:#x} <- {symbol}"),
            None => format!("{symbol}+{:#x}", self.probe.offset),
        }
    }

    /// Where the function returns to, if this is its return.
    fn caller(&self) -> Option<u64> {
        self.payload.get(1 + self.probe.caller?).copied()
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
        write!(out, "{}: ({})", self.probe.name, self.place())?;
        for arg in &self.probe.args {
            write!(out, " {}=", arg.name)?;
            match self.value(arg) {
                Shown::Number(number) => write!(out, "{number}")?,
                Shown::Signed(number) => write!(out, "{number}")?,
                Shown::Hex(number) => write!(out, "{number:#x}")?,
                Shown::Char(byte) => write!(out, "'{}'", byte.escape_ascii())?,
                Shown::Text(bytes) => write!(out, "\"{}\"", bytes.escape_ascii())?,
                Shown::Fault => write!(out, "(fault)")?,
            }
        }
        writeln!(out)?;
        Ok(())
    }

    fn json(&self, out: &mut dyn Write) -> Result<()> {
        let mut args = Map::new();
        for arg in &self.probe.args {
            let value = match self.value(arg) {
                Shown::Number(number) | Shown::Hex(number) => number.into(),
                Shown::Signed(number) => number.into(),
                Shown::Char(byte) => char::from(byte).to_string().into(),
                Shown::Text(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
                Shown::Fault => Value::Null,
            };
            args.insert(arg.name.clone(), value);
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

    /// The value of one of the probe's arguments.
    pub fn value(&self, arg: &Arg) -> Shown {
        if arg.comm {
            return Shown::Text(self.task.comm.clone().into_bytes());
        }
        if let Some(text) = &arg.text {
            return Shown::Text(text.clone().into_bytes());
        }
        let word = match (arg.number, arg.word) {
            (Some(number), _) => number,
            (None, Some(word)) => {
                let faults = self.payload.first().copied().unwrap_or(0) as u32;
                if faults >> arg.value & 1 == 1 {
                    return Shown::Fault;
                }
                let Some(words) = self.payload.get(1 + word..) else {
                    return Shown::Fault;
                };
                if arg.ty == "string" {
                    let bytes = words.iter().take(TEXT_WORDS).flat_map(|w| w.to_le_bytes());
                    return Shown::Text(bytes.take_while(|&byte| byte != 0).collect());
                }
                let Some(&word) = words.first() else {
                    return Shown::Fault;
                };
                let bits = arg.bits.clamp(1, 64);
                word >> arg.shift.min(63) & u64::MAX >> (64 - bits)
            }
            (None, None) => return Shown::Fault,
        };
        typed(word, &arg.ty)
    }
}

/// Words of a text in a payload.
const TEXT_WORDS: usize = 16;

/// A word as its type says: `u8`, `s32`, `x64`, `char`, `b4@0/32`.
fn typed(word: u64, ty: &str) -> Shown {
    if ty == "char" {
        return Shown::Char(word as u8);
    }
    let number = |text: &str| {
        text.parse::<u32>()
            .ok()
            .filter(|bits| (1..=64).contains(bits))
    };
    if let Some((width, rest)) = ty.strip_prefix('b').and_then(|ty| ty.split_once('@'))
        && let Some(width) = number(width)
    {
        let offset = rest.split('/').next().and_then(|text| text.parse().ok());
        return Shown::Number(word >> offset.unwrap_or(0u32).min(63) & u64::MAX >> (64 - width));
    }
    let Some((kind, bits)) = ty.split_at_checked(1) else {
        return Shown::Hex(word);
    };
    let unused = 64 - number(bits).unwrap_or(64);
    match kind {
        "u" => Shown::Number(word << unused >> unused),
        "s" => Shown::Signed((word << unused).cast_signed() >> unused),
        _ => Shown::Hex(word << unused >> unused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_shown_by_their_types() {
        assert_eq!(typed(0x1FF, "u8"), Shown::Number(255));
        assert_eq!(typed(0xFF, "s8"), Shown::Signed(-1));
        assert_eq!(typed(0xFFFF_FFFF, "s32"), Shown::Signed(-1));
        assert_eq!(typed(0xFFFF_FFFF, "s64"), Shown::Signed(0xFFFF_FFFF));
        assert_eq!(typed(0x1_0000_0001, "x32"), Shown::Hex(1));
        assert_eq!(typed(0x41, "char"), Shown::Char(b'A'));
        assert_eq!(typed(0xABCD, "b4@8/32"), Shown::Number(0xB));
        assert_eq!(typed(7, "b64@0/64"), Shown::Number(7));
    }
}
