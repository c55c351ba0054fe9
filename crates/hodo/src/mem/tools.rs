//! Tools that count: operations, blocks, reuse distances, working sets, shared lines.

use std::collections::HashMap;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use hodo_dbi::{Client, Observe};
use hodo_mem::executions::Executions;
use hodo_mem::hot::Hot;
use hodo_mem::lines::{Sharing, WorkingSet};
use hodo_mem::places::{InFile, places};
use hodo_mem::reuse::Reuse;
use serde_json::{Value, json};

use super::objects::{self, function};
use super::{observed, output, sharing};
use crate::args::{
    CommonArgs, CountArgs, HotArgs, LineArgs, MemFormat, ShareArgs, SourceArgs, WorkingSetArgs,
};

/// Observes, and reports what a client has found: as JSON, or as lines of text.
fn tool<C: Client + 'static>(
    common: &CommonArgs,
    (observe, client): (Observe, C),
    as_json: impl FnOnce(&C) -> Value + 'static,
    as_text: impl FnOnce(&C) -> Vec<String> + 'static,
) -> Result<ExitCode> {
    let mut out = output(common.output.as_ref(), &common.source)?;
    let format = common.format;
    observed(&common.source, observe, client, move |client, missing| {
        match format {
            MemFormat::Json => writeln!(out, "{}", missing.note(as_json(&client)))?,
            MemFormat::Text => {
                for line in as_text(&client) {
                    writeln!(out, "{line}")?;
                }
            }
        }
        Ok(out.flush()?)
    })
}

/// What to observe to count executions.
fn counting(source: &SourceArgs) -> (Observe, Executions) {
    let observe = match source.directory {
        Some(_) => Observe::Accesses,
        None => Observe::Counts,
    };
    (observe, Executions::new(observe))
}

/// Counts operations.
pub fn opcodes(args: &CountArgs) -> Result<ExitCode> {
    let top = args.top;
    let sorted = |executions: &Executions| {
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
    };
    tool(
        &args.common,
        counting(&args.common.source),
        move |executions| {
            let sums = sorted(executions).into_iter();
            let rows = sums.map(|(name, count)| json!({"opcode": name, "count": count}));
            json!({ "opcodes": rows.collect::<Vec<_>>() })
        },
        move |executions| {
            let sums = sorted(executions).into_iter().take(top);
            sums.map(|(name, count)| format!("{count:>16}  {name}"))
                .collect()
        },
    )
}

/// Counts the executions of blocks.
pub fn bbcount(args: &CountArgs) -> Result<ExitCode> {
    struct Row {
        place: Option<InFile>,
        pc: u64,
        instructions: usize,
        count: u64,
    }
    let sorted = |executions: &Executions| {
        let rows = executions.basic_blocks().into_iter().map(|found| Row {
            place: InFile::of(&found.block, found.first),
            pc: found.block.insns[found.first].pc,
            instructions: found.instructions,
            count: found.count,
        });
        let mut rows: Vec<Row> = rows.collect();
        rows.sort_by(|a, b| b.count.cmp(&a.count).then(a.pc.cmp(&b.pc)));
        rows
    };
    let top = args.top;
    tool(
        &args.common,
        counting(&args.common.source),
        move |executions| {
            let rows = sorted(executions);
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
        },
        move |executions| {
            let rows = sorted(executions);
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
        },
    )
}

/// Shows reuse distances.
pub fn reuse(args: &LineArgs) -> Result<ExitCode> {
    tool(
        &args.common,
        (Observe::Accesses, Reuse::new(args.line)),
        |reuse| {
            let rows = reuse.rows();
            let rows =
                rows.map(|(from, to, count)| json!({"from": from, "to": to, "count": count}));
            json!({"lines": reuse.first(), "distances": rows.collect::<Vec<_>>()})
        },
        |reuse| {
            let head = "        distance to          accesses".to_owned();
            let rows = reuse
                .rows()
                .map(|(from, to, count)| format!("{from:>16} {to:<12} {count:>16}"));
            let first = format!("{:>16} {:<12} {:>16}", "first access", "", reuse.first());
            [head].into_iter().chain(rows).chain([first]).collect()
        },
    )
}

/// Shows working sets.
pub fn working_set(args: &WorkingSetArgs) -> Result<ExitCode> {
    let line = u64::from(args.line);
    tool(
        &args.common,
        (Observe::Accesses, WorkingSet::new(args.line, args.every)),
        move |set| {
            let (parts, all) = set.parts();
            let row = |part: &hodo_mem::lines::Part| json!({"start": part.start, "lines": part.lines, "bytes": part.lines * line, "pages": part.pages});
            json!({"total": row(&all), "parts": parts.iter().map(row).collect::<Vec<_>>()})
        },
        move |set| {
            let (parts, all) = set.parts();
            let row = |name: String, part: &hodo_mem::lines::Part| {
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
        },
    )
}

/// Shows which memory is accessed most.
pub fn hot(args: &HotArgs) -> Result<ExitCode> {
    let &HotArgs { top, callers, .. } = args;
    tool(
        &args.common,
        (Observe::Accesses, Hot::default()),
        move |hot| {
            let objects = hot.objects(callers);
            json!({ "objects": objects::as_json(objects, ["loads", "stores"]) })
        },
        move |hot| {
            let head = "           loads           stores            bytes  memory".to_owned();
            let objects = hot.objects(callers);
            let rows = objects.iter().take(top).map(|object| {
                let ([loads, stores], bytes) = (object.counts, object.bytes);
                let memory = objects::memory(object);
                format!("{loads:>16} {stores:>16} {bytes:>16}  {memory}")
            });
            std::iter::once(head).chain(rows).collect()
        },
    )
}

/// Shows lines that threads share.
pub fn share(args: &ShareArgs) -> Result<ExitCode> {
    let &ShareArgs { top, callers, .. } = args;
    tool(
        &args.common,
        (Observe::Accesses, Sharing::new(args.line)),
        move |sharing| sharing::as_json(&sharing.shared(usize::MAX, callers)),
        move |sharing| sharing::as_text(&sharing.shared(top, callers)),
    )
}
