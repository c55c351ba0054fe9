//! Lines that threads share, for people and for scripts.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use crate::lines::{Shared, Use, is_false_sharing};
use crate::places::{InFile, Place, places};
use crate::variables::{Variable, fields};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::objects::{self, function};

/// What is known of lines.
struct Known<'l> {
    places: FxHashMap<InFile, Place>,
    fields: HashMap<(&'l Path, u64), String>,
}

impl<'l> Known<'l> {
    fn new(lines: &[Shared], variables: &'l [Variable]) -> Self {
        let uses = lines.iter().flat_map(|line| &line.uses);
        let wanted: Vec<InFile> = uses.filter_map(place).collect();
        Self {
            places: places(wanted.iter()),
            fields: fields(variables),
        }
    }

    /// The function that has accessed a line first.
    fn function(&self, used: &Use) -> &str {
        let place = place(used);
        function(place.and_then(|place| self.places.get(&place)))
    }

    /// The parts of variables that a thread uses.
    fn parts<'s>(&'s self, parts: &'s [Variable]) -> BTreeSet<&'s str> {
        let keys = parts.iter().map(|part| (part.file.as_path(), part.address));
        let names = keys.filter_map(|key| self.fields.get(&key));
        names.map(String::as_str).collect()
    }
}

fn place(used: &Use) -> Option<InFile> {
    let (block, insn) = &used.place;
    InFile::of(block, usize::from(*insn))
}

/// The parts of variables in lines.
fn variables(lines: &[Shared]) -> Vec<Variable> {
    let parts = lines.iter().flat_map(|line| &line.parts);
    parts.flatten().cloned().collect()
}

/// As JSON.
#[must_use]
pub fn as_json(lines: &[Shared]) -> Value {
    let variables = variables(lines);
    let known = Known::new(lines, &variables);
    let rows = lines.iter().map(|line| {
        let threads = line.uses.iter().zip(&line.parts).map(|(used, parts)| {
            json!({
                "thread": used.thread,
                "loads": used.loads,
                "stores": used.stores,
                "function": known.function(used),
                "fields": known.parts(parts),
            })
        });
        json!({
            "address": format!("{:#x}", line.address),
            "false_sharing": is_false_sharing(&line.uses),
            "memory": objects::what(line.what.clone()),
            "threads": threads.collect::<Vec<_>>(),
        })
    });
    json!({ "lines": rows.collect::<Vec<_>>() })
}

/// As lines of text.
#[must_use]
pub fn as_text(lines: &[Shared]) -> Vec<String> {
    /// The maximum number of threads that are shown of a line, and of parts of variables.
    const MOST: usize = 8;
    let variables = variables(lines);
    let known = Known::new(lines, &variables);
    let mut rows = Vec::new();
    for line in lines {
        let bytes = match is_false_sharing(&line.uses) {
            true => "different bytes",
            false => "the same bytes",
        };
        let (address, count) = (line.address, line.uses.len());
        let what = objects::named(&line.what, "");
        rows.push(format!("{address:#x}: {count} threads use {bytes}: {what}"));
        for (used, parts) in line.uses.iter().zip(&line.parts).take(MOST) {
            let (thread, loads, stores) = (used.thread, used.loads, used.stores);
            let parts: Vec<&str> = known.parts(parts).into_iter().take(MOST).collect();
            let parts = match parts.is_empty() {
                true => String::new(),
                false => format!(": {}", parts.join(", ")),
            };
            let name = known.function(used);
            rows.push(format!(
                "  thread {thread:<5} {loads:>12} loads {stores:>12} stores  {name}{parts}"
            ));
        }
    }
    rows
}
