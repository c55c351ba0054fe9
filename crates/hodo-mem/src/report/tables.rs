//! What tools that count have found: operations, blocks, reuse distances, working sets, memory.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::objects::{self, function};
use crate::executions::Executions;
use crate::hot::Hot;
use crate::lines::{Part, WorkingSet};
use crate::places::{InFile, places};
use crate::reuse::Reuse;

/// Operations, and how often each was executed, most often first.
fn operations(executions: &Executions) -> Vec<(String, u64)> {
    let mut sums: HashMap<String, u64> = HashMap::new();
    for (block, counts) in executions.blocks() {
        for (insn, count) in counts.into_iter().enumerate() {
            *sums
                .entry(hodo_dbi::mnemonic(block.bytes(insn)))
                .or_default() += count;
        }
    }
    let mut sums: Vec<(String, u64)> = sums.into_iter().filter(|sum| sum.1 > 0).collect();
    sums.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    sums
}

/// Operations as JSON.
#[must_use]
pub fn operations_as_json(executions: &Executions) -> Value {
    let sums = operations(executions).into_iter();
    let rows = sums.map(|(name, count)| json!({"opcode": name, "count": count}));
    json!({ "opcodes": rows.collect::<Vec<_>>() })
}

/// The most frequent operations as lines of text.
#[must_use]
pub fn operations_as_text(executions: &Executions, top: usize) -> Vec<String> {
    let sums = operations(executions).into_iter().take(top);
    sums.map(|(name, count)| format!("{count:>16}  {name}"))
        .collect()
}

/// A block, and how often it was executed.
struct Row {
    place: Option<InFile>,
    pc: u64,
    instructions: usize,
    count: u64,
}

/// Blocks, those that were executed most often first.
fn blocks(executions: &Executions) -> Vec<Row> {
    let rows = executions.basic_blocks().into_iter().map(|found| Row {
        place: InFile::of(&found.block, found.first),
        pc: found.block.insns[found.first].pc,
        instructions: found.instructions,
        count: found.count,
    });
    let mut rows: Vec<Row> = rows.collect();
    rows.sort_by(|a, b| b.count.cmp(&a.count).then(a.pc.cmp(&b.pc)));
    rows
}

/// Blocks as JSON.
#[must_use]
pub fn blocks_as_json(executions: &Executions) -> Value {
    let rows = blocks(executions);
    let found = places(rows.iter().filter_map(|row| row.place.as_ref()));
    let rows = rows.iter().map(|row| {
        let place = row.place.as_ref();
        json!({
            "count": row.count,
            "pc": format!("{:#x}", row.pc),
            "instructions": row.instructions,
            "function": function(place.and_then(|place| found.get(place))),
            "file": place.map(|place| place.file.display().to_string()),
            "offset": place.map(|place| place.offset),
        })
    });
    json!({ "blocks": rows.collect::<Vec<_>>() })
}

/// The blocks that were executed most often, as lines of text.
#[must_use]
pub fn blocks_as_text(executions: &Executions, top: usize) -> Vec<String> {
    let rows = blocks(executions);
    let rows = &rows[..rows.len().min(top)];
    let found = places(rows.iter().filter_map(|row| row.place.as_ref()));
    let head = "      executions  instructions                 pc  function".to_owned();
    let rows = rows.iter().map(|row| {
        let place = row.place.as_ref().and_then(|place| found.get(place));
        let (count, instructions, pc) = (row.count, row.instructions, row.pc);
        format!(
            "{count:>16} {instructions:>13} {pc:>#18x}  {}",
            function(place)
        )
    });
    std::iter::once(head).chain(rows).collect()
}

/// Reuse distances as JSON.
#[must_use]
pub fn distances_as_json(reuse: &Reuse) -> Value {
    let rows = reuse.rows();
    let rows = rows.map(|(from, to, count)| json!({"from": from, "to": to, "count": count}));
    json!({"lines": reuse.first(), "distances": rows.collect::<Vec<_>>()})
}

/// Reuse distances as lines of text.
#[must_use]
pub fn distances_as_text(reuse: &Reuse) -> Vec<String> {
    let head = "        distance to          accesses".to_owned();
    let rows = reuse
        .rows()
        .map(|(from, to, count)| format!("{from:>16} {to:<12} {count:>16}"));
    let first = format!("{:>16} {:<12} {:>16}", "first access", "", reuse.first());
    [head].into_iter().chain(rows).chain([first]).collect()
}

/// Working sets as JSON. `line`: bytes of a line.
#[must_use]
pub fn working_sets_as_json(set: &WorkingSet, line: u64) -> Value {
    let (parts, all) = set.parts();
    let row = |part: &Part| json!({"start": part.start, "lines": part.lines, "bytes": part.lines * line, "pages": part.pages});
    json!({"total": row(&all), "parts": parts.iter().map(row).collect::<Vec<_>>()})
}

/// Working sets as lines of text. `line`: bytes of a line.
#[must_use]
pub fn working_sets_as_text(set: &WorkingSet, line: u64) -> Vec<String> {
    let (parts, all) = set.parts();
    let row = |name: String, part: &Part| {
        let (kib, pages) = ((part.lines * line) >> 10, part.pages);
        format!("{name:>18} {kib:>10} KiB {pages:>10} pages")
    };
    let head = "after instructions   in lines".to_owned();
    let rows = parts.iter().map(|part| row(part.start.to_string(), part));
    [head]
        .into_iter()
        .chain(rows)
        .chain([row("all".to_owned(), &all)])
        .collect()
}

/// The memory that is accessed most, as JSON, with this number of callers of allocations.
#[must_use]
pub fn hot_as_json(hot: &Hot, callers: usize) -> Value {
    let objects = hot.objects(callers);
    json!({ "objects": objects::as_json(objects, ["loads", "stores"]) })
}

/// The same as lines of text.
#[must_use]
pub fn hot_as_text(hot: &Hot, callers: usize, top: usize) -> Vec<String> {
    let head = "           loads           stores            bytes  memory".to_owned();
    let objects = hot.objects(callers);
    let rows = objects.iter().take(top).map(|object| {
        let ([loads, stores], bytes) = (object.counts, object.bytes);
        let memory = objects::memory(object);
        format!("{loads:>16} {stores:>16} {bytes:>16}  {memory}")
    });
    std::iter::once(head).chain(rows).collect()
}
