//! Shows the memory that a program allocates and does not free, by the functions that allocate it.
//!
//!     cargo run --release -p hodo-mem --example leaks -- PROGRAM ARGUMENTS…

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::sync::Arc;

use anyhow::{Context, Result};
use hodo_dbi::{Access, Block, Client, Event, Events, Observe, Target};
use hodo_mem::heap::{self, Change, Heap};
use hodo_mem::places::places;
use hodo_mem::stacks::Stacks;

#[derive(Default)]
struct Leaks {
    heap: Heap,
    stacks: Stacks,
    /// The process of each thread.
    processes: HashMap<u32, i32>,
    /// By process and address: bytes, and the calls in which they were allocated.
    allocated: HashMap<(i32, u64), (u64, u32)>,
}

impl Client for Leaks {
    fn thread(&mut self, thread: u32, process: i32, _: i32) {
        self.processes.insert(thread, process);
        self.stacks.thread(thread, process);
    }

    fn events(&self) -> Events {
        heap::events()
    }

    fn event(&mut self, thread: u32, event: &Event<'_>) {
        let process = self.processes[&thread];
        if *event == Event::Executed {
            self.allocated.retain(|&(other, _), _| other != process);
            self.stacks.executed_program(thread, process);
        }
        if let Event::Forked { maker } = *event {
            let before = self.processes[&maker];
            let copied = self
                .allocated
                .iter()
                .filter(|((other, _), _)| *other == before);
            let copied = copied.map(|(&(_, address), &known)| ((process, address), known));
            let copied: Vec<_> = copied.collect();
            self.allocated.extend(copied);
            self.stacks.forked(thread, maker);
        }
        let stacks = &mut self.stacks;
        let calls = |stack| stacks.at(thread, stack);
        match self.heap.event(thread, event, calls) {
            Some(Change::Freed { address }) => {
                self.allocated.remove(&(process, address));
            }
            Some(Change::Allocated {
                address,
                size,
                context,
            }) => {
                self.allocated.insert((process, address), (size, context));
            }
            Some(Change::Moved {
                from,
                to,
                size,
                context,
            }) => {
                self.allocated.remove(&(process, from));
                self.allocated.insert((process, to), (size, context));
            }
            None => {}
        }
    }

    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        self.stacks.executed(thread, block, upto, accesses);
    }
}

/// Runs a program. Returns how often its functions have allocated memory that was not freed, and how many bytes.
pub fn leaks(command: &[OsString]) -> Result<BTreeMap<String, (u64, u64)>> {
    let program = hodo_dbi::find_program(command.first().context("no program is given")?)?;
    let target = Target::program(&program, command);
    let (_, leaks) = hodo_dbi::observe(&target, Observe::Accesses, Leaks::default())?;
    let mut sums = BTreeMap::new();
    for &(size, context) in leaks.allocated.values() {
        let call = leaks.stacks.calls(context).next().flatten();
        let place = places(call.iter()).into_values().next();
        let function = place.and_then(|place| place.function);
        let sum: &mut (u64, u64) = sums.entry(function.unwrap_or_default()).or_default();
        *sum = (sum.0 + 1, sum.1 + size);
    }
    Ok(sums)
}

fn main() -> Result<()> {
    let command: Vec<OsString> = std::env::args_os().skip(1).collect();
    for (function, (count, bytes)) in leaks(&command)? {
        println!("{bytes:>12} bytes in {count:>8} allocations  {function}");
    }
    Ok(())
}
