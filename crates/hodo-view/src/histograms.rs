//! Histograms of probes, as the kernel's `hist` files show them.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::events::{EventFormat, EventOptions};

/// A histogram in `hists.json`.
#[derive(Debug, Deserialize)]
struct Histogram {
    group: String,
    name: String,
    definition: String,
    size: u64,
    lost: u64,
    unread: u64,
    keys: Vec<Column>,
    sums: Vec<Column>,
    entries: Vec<Entry>,
}

/// A key or a sum.
#[derive(Debug, Deserialize)]
struct Column {
    name: String,
    kind: String,
    #[serde(default)]
    width: u64,
}

#[derive(Debug, Deserialize)]
struct Entry {
    keys: Vec<Value>,
    hits: u64,
    sums: Vec<Value>,
}

/// What histograms hold.
#[derive(Debug)]
pub(crate) struct Histograms(Vec<Histogram>);

impl Histograms {
    /// Reads the histograms of the trace in a directory. There may be none.
    pub fn read(data: &Path) -> Result<Self> {
        read(data).map(Self)
    }

    /// Returns each histogram as an object.
    pub fn json(&self) -> impl Iterator<Item = Value> {
        self.0.iter().map(Histogram::json)
    }

    /// Writes the histograms one below the other, as the kernel does.
    pub fn text(&self, out: &mut dyn Write) -> Result<()> {
        texts(&self.0, out)
    }
}

fn read(data: &Path) -> Result<Vec<Histogram>> {
    let path = data.join("hists.json");
    match std::fs::read(&path) {
        Ok(text) => {
            serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// Shows the histograms of a trace. Writes nothing if there are none.
///
/// # Errors
/// If the histograms cannot be read or `out` cannot be written.
pub fn histograms(options: &EventOptions, out: &mut dyn Write) -> Result<()> {
    let all = read(&options.source.data)?;
    match options.format {
        EventFormat::Perfetto => Ok(()),
        EventFormat::Json => {
            for histogram in &all {
                writeln!(out, "{}", histogram.json())?;
            }
            Ok(())
        }
        EventFormat::Text => texts(&all, out),
    }
}

/// Writes histograms one below the other. One definition may make hundreds of them, such as one for each system call;
/// then those that are empty are only counted.
fn texts(all: &[Histogram], out: &mut dyn Write) -> Result<()> {
    let mut empty: Vec<(&str, u64)> = Vec::new();
    for histogram in all {
        let definition = histogram.definition.as_str();
        let mut same = all.iter().filter(|other| other.definition == definition);
        let is_one_of_many = same.nth(1).is_some();
        if is_one_of_many && histogram.is_empty() {
            match empty.iter_mut().find(|(of, _)| *of == definition) {
                Some((_, count)) => *count += 1,
                None => empty.push((definition, 1)),
            }
            continue;
        }
        histogram.text(is_one_of_many, out)?;
    }
    for (definition, count) in empty {
        let are = if count == 1 { "is" } else { "are" };
        writeln!(out, "# {count} more of '{definition}' {are} empty\n")?;
    }
    Ok(())
}

impl Histogram {
    /// Returns whether nothing was counted, nor lost.
    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.lost == 0 && self.unread == 0
    }

    fn hits(&self) -> u64 {
        let hits = self.entries.iter().map(|entry| entry.hits);
        hits.fold(0, u64::wrapping_add)
    }

    fn json(&self) -> Value {
        let named = |columns: &[Column], values: &[Value]| -> Map<String, Value> {
            let names = columns.iter().map(|column| column.name.clone());
            names.zip(values.iter().cloned()).collect()
        };
        let entry = |entry: &Entry| {
            json!({
                "key": named(&self.keys, &entry.keys), "hitcount": entry.hits,
                "sums": named(&self.sums, &entry.sums),
            })
        };
        json!({
            "group": self.group, "name": self.name, "size": self.size, "lost": self.lost, "unread": self.unread,
            "hits": self.hits(), "hist": self.entries.iter().map(entry).collect::<Vec<_>>(),
        })
    }

    /// `is_one_of_many`: its definition does not tell which event it is of.
    fn text(&self, is_one_of_many: bool, out: &mut dyn Write) -> Result<()> {
        writeln!(
            out,
            "# event histogram\n#\n# trigger info: {}",
            self.definition
        )?;
        if is_one_of_many {
            writeln!(out, "# event: {}:{}", self.group, self.name)?;
        }
        writeln!(out, "#\n")?;
        for entry in &self.entries {
            write!(out, "{{")?;
            for (index, (column, key)) in self.keys.iter().zip(&entry.keys).enumerate() {
                let comma = if index > 0 { "," } else { "" };
                write!(out, "{comma} {}: {}", column.name, column.key(key))?;
            }
            write!(out, " }} hitcount: {:>10}", entry.hits)?;
            for (column, sum) in self.sums.iter().zip(&entry.sums) {
                write!(out, "  {}: {:>10}", column.name, column.number(sum))?;
            }
            writeln!(out)?;
        }
        writeln!(out, "\nTotals:\n    Hits: {}", self.hits())?;
        writeln!(
            out,
            "    Entries: {}\n    Dropped: {}",
            self.entries.len(),
            self.lost
        )?;
        if self.unread > 0 {
            writeln!(out, "    Not read: {}", self.unread)?;
        }
        writeln!(out)?;
        Ok(())
    }
}

impl Column {
    fn number(&self, value: &Value) -> String {
        match value.as_u64() {
            Some(number) if self.kind == "hex" => format!("{number:#x}"),
            _ => value.to_string(),
        }
    }

    /// Formats a key as the kernel does.
    fn key(&self, value: &Value) -> String {
        match self.kind.as_str() {
            "text" => {
                let text = value.as_str().unwrap_or_default();
                // The mark of a text that was cut.
                let (text, mark) = match text.strip_suffix('…') {
                    Some(text) => (text, "..."),
                    None => (text, ""),
                };
                let text = format!("{}{mark}", text.escape_default());
                format!("{text:<50}")
            }
            "log2" => match value.as_u64() {
                Some(number) if number > 0 => format!("~ 2^{:<2}", number.ilog2()),
                _ => "~ 0   ".to_owned(),
            },
            "linear" => {
                let low = value
                    .as_i64()
                    .map_or_else(|| i128::from(value.as_u64().unwrap_or(0)), i128::from);
                format!("~ {low}-{}", low + i128::from(self.width) - 1)
            }
            "char" => {
                let byte = value.as_u64().unwrap_or(0) as u8;
                format!("'{}'", byte.escape_ascii())
            }
            _ => format!("{:>10}", self.number(value)),
        }
    }
}
