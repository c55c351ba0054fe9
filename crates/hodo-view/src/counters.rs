//! The counts of probes: `counts.json`.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::events::{EventFormat, EventOptions, symbol};

/// An entry of `counts.json`: one counted place, or several of one function.
#[derive(Debug, Deserialize)]
struct Entry {
    group: String,
    name: String,
    symbol: String,
    #[serde(default)]
    offset: u64,
    addr: u64,
    path: String,
    #[serde(default)]
    hits: Option<u64>,
    #[serde(default)]
    nmissed: Option<u64>,
    /// For each place its offset from the beginning of the function (`addr`), and its hits.
    #[serde(default)]
    places: Vec<(u64, u64)>,
    /// Offsets are part of the names of places.
    #[serde(default)]
    by_offset: bool,
}

/// Identifies a function, unless several functions have the same name.
type Function<'c> = (&'c str, &'c str, &'c str);

impl Entry {
    fn function(&self) -> Function<'_> {
        (&self.group, &self.symbol, &self.path)
    }

    fn counts(&self) -> impl Iterator<Item = Count<'_>> {
        let one = Count {
            entry: self,
            offset: self.offset,
            addr: self.addr,
            hits: self.hits,
        };
        let one = self.places.is_empty().then_some(one);
        let places = self.places.iter().map(|&(offset, hits)| Count {
            entry: self,
            offset,
            addr: self.addr.wrapping_add(offset),
            hits: Some(hits),
        });
        one.into_iter().chain(places)
    }
}

/// If more places than these have no hit, only their number is shown.
const MANY: usize = 30;

/// A counter.
#[derive(Debug, Clone, Copy)]
struct Count<'c> {
    entry: &'c Entry,
    offset: u64,
    addr: u64,
    hits: Option<u64>,
}

impl<'c> Count<'c> {
    /// Returns whether there is anything to show. A probe that only prints is shown only if it missed hits.
    fn is_reported(&self) -> bool {
        self.hits.is_some() || self.entry.nmissed != Some(0)
    }

    /// Returns whether the probe neither hit nor missed anything.
    fn is_idle(&self) -> bool {
        self.hits == Some(0) && matches!(self.entry.nmissed, None | Some(0))
    }

    fn name(&self) -> Cow<'c, str> {
        let name = &self.entry.name;
        match self.offset {
            offset if offset != 0 && self.entry.by_offset => format!("{name}_{offset:x}").into(),
            _ => name.into(),
        }
    }

    /// Returns what distinguishes the place by its names.
    fn place(&self) -> (Function<'c>, Cow<'c, str>, u64) {
        (self.entry.function(), self.name(), self.offset)
    }

    /// Appends name and place to a text. `symbol` is the displayed name of the function.
    fn title(&self, symbol: &str, out: &mut String) {
        out.push_str(&self.entry.name);
        if self.offset != 0 && self.entry.by_offset {
            out.push('_');
            number::<16>(self.offset, 0, out);
        }
        if self.entry.nmissed.is_some() {
            out.extend([": (<- ", symbol, ")"]);
            return;
        }
        // A system call, which is made at many places.
        if symbol.is_empty() {
            return;
        }
        out.extend([": (", symbol, "+0x"]);
        number::<16>(self.offset, 0, out);
        out.push(')');
    }
}

/// Appends a number to a text. There may be millions of numbers, and the standard formatter takes several times as
/// long.
fn number<const BASE: u64>(mut number: u64, width: usize, out: &mut String) {
    let mut digits = [b' '; 64];
    let mut at = digits.len();
    while number > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(number % BASE) as usize];
        number /= BASE;
    }
    let digits = &digits[at.min(digits.len() - width)..];
    out.push_str(str::from_utf8(digits).unwrap_or_default());
}

/// A counter as an object.
#[derive(Debug, Serialize)]
pub(crate) struct Told<'c> {
    addr: u64,
    group: &'c str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hits: Option<u64>,
    name: Cow<'c, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nmissed: Option<u64>,
    offset: u64,
    path: &'c str,
    symbol: &'c str,
}

/// What probes have counted.
#[derive(Debug)]
pub(crate) struct Counters(Vec<Entry>);

impl Counters {
    /// Reads the counts of the trace in a directory. There are none if no probe counts.
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

    fn all(&self) -> impl Iterator<Item = Count<'_>> {
        self.0.iter().flat_map(Entry::counts)
    }

    /// Returns whether no counter has anything to show.
    pub fn is_empty(&self) -> bool {
        !self.all().any(|count| count.is_reported())
    }

    /// Returns the counters that have something to show, as objects.
    pub fn json(&self) -> impl Iterator<Item = Told<'_>> {
        let told = self.all().filter(Count::is_reported);
        told.map(|count| Told {
            addr: count.addr,
            group: &count.entry.group,
            hits: count.hits,
            name: count.name(),
            nmissed: count.entry.nmissed,
            offset: count.offset,
            path: &count.entry.path,
            symbol: &count.entry.symbol,
        })
    }

    /// Returns the functions in which several places may share a name. There are few, and only their places need to be
    /// compared.
    fn ambiguous(&self) -> HashSet<Function<'_>> {
        let mut found = HashSet::new();
        let mut last: HashMap<Function<'_>, u64> = HashMap::new();
        for entry in &self.0 {
            let offsets = || entry.counts().map(|count| count.offset);
            let (Some(first), Some(end)) = (offsets().next(), offsets().last()) else {
                continue;
            };
            // Most functions have all their places in one entry.
            let before = last.insert(entry.function(), end);
            if before.is_some_and(|before| first <= before) || !offsets().is_sorted_by(|a, b| a < b)
            {
                found.insert(entry.function());
            }
        }
        found
    }

    /// Writes the counters as a table, for people to read. A probe on a function with several implementations has
    /// several places of the same name. Those without a hit are left out; if none has a hit, one is shown. If many
    /// places have no hit, as with a probe on every instruction, their number is shown instead.
    pub fn text(&self, out: &mut dyn Write) -> Result<()> {
        if self.all().any(|count| count.hits.is_some()) {
            writeln!(out, "        HITS  PROBE")?;
        }
        let ambiguous = self.ambiguous();
        let compared = |entry: &Entry| ambiguous.contains(&entry.function());
        let mut shown: HashSet<_> = (self.0.iter().filter(|entry| compared(entry)))
            .flat_map(Entry::counts)
            .filter(|count| count.is_reported() && !count.is_idle())
            .map(|count| count.place())
            .collect();
        let idle = self
            .all()
            .filter(|count| count.is_reported() && count.is_idle());
        let summed = idle.take(MANY + 1).count() > MANY;
        let mut left_out = 0_u64;
        let mut line = String::new();
        for entry in &self.0 {
            let compared = compared(entry);
            let symbol = symbol(&entry.symbol);
            for count in entry.counts().filter(Count::is_reported) {
                if compared && count.is_idle() && !shown.insert(count.place()) {
                    continue;
                }
                if summed && count.is_idle() {
                    left_out += 1;
                    continue;
                }
                line.clear();
                match count.hits {
                    Some(hits) => number::<10>(hits, 12, &mut line),
                    None => line.push_str("            "),
                }
                line.push_str("  ");
                count.title(&symbol, &mut line);
                if let Some(missed @ 1..) = entry.nmissed {
                    line.push_str(", missed: ");
                    number::<10>(missed, 0, &mut line);
                }
                line.push('\n');
                out.write_all(line.as_bytes())?;
            }
        }
        if left_out > 0 {
            writeln!(out, "{:>12}  ({left_out} more places were not hit)", 0)?;
        }
        Ok(())
    }

    /// Returns the names of the counters with their hits.
    pub fn named(&self) -> impl Iterator<Item = (String, u64)> {
        self.0.iter().flat_map(|entry| {
            let symbol = symbol(&entry.symbol);
            let counts = entry.counts();
            counts.filter_map(move |count| {
                let mut title = String::new();
                count.title(&symbol, &mut title);
                Some((title, count.hits?))
            })
        })
    }
}

/// Shows what probes have counted. Writes nothing if no probe counts.
///
/// # Errors
/// If the counts cannot be read or `out` cannot be written.
pub fn counts(options: &EventOptions, out: &mut dyn Write) -> Result<()> {
    if options.format == EventFormat::Perfetto {
        // This format shows the counts among the events.
        return Ok(());
    }
    let counters = Counters::read(&options.source.data)?;
    if options.format == EventFormat::Json {
        for line in counters.json() {
            serde_json::to_writer(&mut *out, &line)?;
            writeln!(out)?;
        }
        return Ok(());
    }
    counters.text(out)
}
