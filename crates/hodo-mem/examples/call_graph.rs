//! Shows which functions of a program call which ones, and how often, as a graph in the language of Graphviz.
//!
//!     cargo run --release -p hodo-mem --example call_graph -- PROGRAM ARGUMENTS… 2> graph.dot
//!     dot -Tsvg graph.dot > graph.svg

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::sync::Arc;

use anyhow::{Context, Result};
use hodo_dbi::{Access, Block, Client, Observe, Target, Transfer};
use hodo_mem::places::{InFile, places};

#[derive(Default)]
struct Calls {
    /// By thread: the block that has ended with a call.
    calling: HashMap<u32, Arc<Block>>,
    /// The blocks with the call and at its target, by number, and how often.
    counts: HashMap<(u32, u32), u64>,
    blocks: HashMap<u32, Arc<Block>>,
}

impl Client for Calls {
    fn block(&mut self, block: &Arc<Block>) {
        self.blocks.insert(block.id, Arc::clone(block));
    }

    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, _: &[Access]) {
        if let Some(caller) = self.calling.remove(&thread) {
            *self.counts.entry((caller.id, block.id)).or_default() += 1;
        }
        let last = block.insns[block.insns.len() - 1].transfer;
        if upto == block.insns.len() && matches!(last, Transfer::Call | Transfer::IndirectCall) {
            self.calling.insert(thread, Arc::clone(block));
        }
    }
}

impl Calls {
    /// How often each function has called each other one.
    fn by_function(&self) -> BTreeMap<(String, String), u64> {
        let ends = self.counts.iter().filter_map(|((caller, callee), count)| {
            let (caller, callee) = (self.blocks.get(caller)?, self.blocks.get(callee)?);
            let call = InFile::of(caller, caller.insns.len() - 1)?;
            Some((call, InFile::of(callee, 0)?, *count))
        });
        let ends: Vec<(InFile, InFile, u64)> = ends.collect();
        let found = places(ends.iter().flat_map(|(call, target, _)| [call, target]));
        let name = |place: &InFile| {
            let function = found.get(place).and_then(|place| place.function.clone());
            let file = place.file.file_name().unwrap_or_default();
            function.unwrap_or_else(|| format!("{:#x}@{}", place.offset, file.to_string_lossy()))
        };
        let mut sums = BTreeMap::new();
        for (call, target, count) in &ends {
            *sums.entry((name(call), name(target))).or_default() += count;
        }
        sums
    }
}

/// Runs a program. Returns how often each function has called each other one.
pub fn calls(command: &[OsString]) -> Result<BTreeMap<(String, String), u64>> {
    let program = hodo_dbi::find_program(command.first().context("no program is given")?)?;
    let observed = hodo_dbi::observe(
        &Target::program(&program, command),
        Observe::Accesses,
        Calls::default(),
    )?;
    Ok(observed.1.by_function())
}

fn main() -> Result<()> {
    let command: Vec<OsString> = std::env::args_os().skip(1).collect();
    let calls = calls(&command)?;
    eprintln!("digraph calls {{");
    for ((caller, callee), count) in calls {
        eprintln!("  {caller:?} -> {callee:?} [label={count}];");
    }
    eprintln!("}}");
    Ok(())
}
