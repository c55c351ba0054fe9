//! Results as a file of cachegrind, which `cg_annotate` and KCachegrind read: "Cachegrind: a high-precision tracing
//! profiler", section "Cachegrind Output File Format", in valgrind's manual.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;

use crate::cache::Counts;
use crate::model::{Caches, Geometry};
use anyhow::Result;

/// What is not known.
const UNKNOWN: &str = "???";

/// A source file, a function, and a line, which is 0 if it is not known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The source file.
    pub file: Option<String>,
    /// The function.
    pub function: Option<String>,
    /// The line.
    pub line: u32,
}

/// Writes the file.
///
/// # Errors
/// If it cannot be written.
pub fn write(
    out: &mut impl Write,
    caches: &Caches,
    command: &[OsString],
    parts: &BTreeMap<Part, Counts>,
) -> Result<()> {
    let geometries = [
        ("I1", caches.instructions),
        ("D1", caches.data),
        ("LL", caches.last),
    ];
    for (name, Geometry { size, ways, line }) in geometries {
        writeln!(
            out,
            "desc: {name} cache: {size} B, {line} B, {ways}-way associative"
        )?;
    }
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    // A line feed would end it.
    let words = words.join(" ").replace('\n', " ");
    writeln!(out, "cmd: {words}")?;
    writeln!(out, "events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw")?;
    let mut open = None;
    let mut total = Counts::default();
    for (part, counts) in parts {
        let file = part.file.as_deref().unwrap_or(UNKNOWN);
        let function = part.function.as_deref().unwrap_or(UNKNOWN);
        if open != Some((file, function)) {
            if open.is_none_or(|(before, _)| before != file) {
                writeln!(out, "fl={file}")?;
            }
            writeln!(out, "fn={function}")?;
            open = Some((file, function));
        }
        writeln!(out, "{} {}", part.line, numbers(counts))?;
        total.add(counts);
    }
    writeln!(out, "summary: {}", numbers(&total))?;
    Ok(out.flush()?)
}

fn numbers(counts: &Counts) -> String {
    let fetches = [
        counts.instructions,
        counts.fetch_misses,
        counts.fetch_last_misses,
    ];
    let kinds = (0..2).flat_map(|kind| {
        [
            counts.accesses[kind],
            counts.misses[kind],
            counts.last_misses[kind],
        ]
    });
    let numbers = fetches.into_iter().chain(kinds);
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    numbers.join(" ")
}
