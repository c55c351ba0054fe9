//! What a program allocates: how much there was at the peak, and what was never freed, by the calls that allocate.

use std::collections::HashMap;
use std::sync::Arc;

use hodo_dbi::{Access, Accesses, Block, Client, Event, Events, Transfer};
use rustc_hash::FxHashMap;

use crate::heap::{self, Change, Heap};
use crate::places::{InFile, Place, places};
use crate::stacks::Stacks;

/// Allocations and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// How many.
    pub allocations: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, other: Self) {
        self.allocations += other.allocations;
        self.bytes = self.bytes.wrapping_add(other.bytes);
    }

    fn put(&mut self, bytes: u64) {
        self.allocations += 1;
        // A damaged recording may have any number.
        self.bytes = self.bytes.wrapping_add(bytes);
    }

    fn take(&mut self, bytes: u64) {
        self.allocations -= 1;
        self.bytes = self.bytes.wrapping_sub(bytes);
    }
}

/// What was allocated, by some calls or in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// All allocations.
    pub all: Amount,
    /// What there was when most bytes were allocated, in all processes together.
    pub peak: Amount,
    /// What was never freed.
    pub leaked: Amount,
    /// Allocations that were freed before their thread has allocated anything else.
    pub temporary: u64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.all.add(other.all);
        self.peak.add(other.peak);
        self.leaked.add(other.leaked);
        self.temporary += other.temporary;
    }
}

/// What some calls have allocated. `calls`: the one that allocates, and its callers. `None`: one is from no file.
#[derive(Debug, Clone)]
pub struct Stack {
    /// The instructions that call.
    pub calls: Vec<Option<InFile>>,
    /// What they have allocated.
    pub sums: Sums,
}

/// Memory that is allocated.
#[derive(Debug, Clone, Copy)]
struct Live {
    size: u64,
    context: u32,
    /// How many more times it will be reported that an allocation at this address is freed: those that other threads
    /// have freed before.
    late: u32,
}

/// What is known of a context.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    sums: Sums,
    live: Amount,
    /// The number of the peak for which its share is known.
    peak: u64,
}

/// A peak of allocated memory.
#[derive(Debug, Clone, Copy, Default)]
struct Peak {
    bytes: u64,
    /// How many peaks there have been.
    number: u64,
    /// Instructions that had been executed.
    instructions: u64,
}

/// Follows allocations.
#[derive(Debug, Default)]
pub struct Allocations {
    heap: Heap,
    stacks: Stacks,
    /// The process of each thread.
    processes: FxHashMap<u32, i32>,
    /// By process and address.
    live: FxHashMap<(i32, u64), Live>,
    contexts: FxHashMap<u32, Known>,
    /// The last allocation of each thread.
    last: FxHashMap<u32, u64>,
    bytes: u64,
    peak: Peak,
    instructions: u64,
    /// Only what this thread allocates counts.
    only: Option<u32>,
}

impl Allocations {
    /// Only what this thread allocates counts, if there is one. Any thread may free it.
    #[must_use]
    pub fn of_thread(thread: Option<u32>) -> Self {
        Self {
            only: thread,
            ..Self::default()
        }
    }

    fn change(&mut self, thread: u32, change: Change) {
        let process = self.processes.get(&thread).copied().unwrap_or(0);
        match change {
            Change::Freed { address } => {
                let is_last = self.last.get(&thread) == Some(&address);
                if let Some(context) = self.free((process, address))
                    && is_last
                {
                    self.context(context).sums.temporary += 1;
                }
                self.last.remove(&thread);
            }
            Change::Allocated {
                address,
                size,
                context,
            } => self.allocate(thread, (process, address), size, context),
            Change::Moved {
                from,
                to,
                size,
                context,
            } => {
                self.free((process, from));
                self.allocate(thread, (process, to), size, context);
            }
        }
    }

    /// A context whose memory is about to change. If there was a peak since it has changed last, it had its share then.
    fn context(&mut self, context: u32) -> &mut Known {
        let peak = self.peak.number;
        let known = self.contexts.entry(context).or_default();
        if known.peak < peak {
            known.peak = peak;
            known.sums.peak = known.live;
        }
        known
    }

    fn allocate(&mut self, thread: u32, place: (i32, u64), size: u64, context: u32) {
        let mut late = 0;
        // Another thread has freed it, which is received later.
        if let Some(before) = self.live.remove(&place) {
            late = before.late + 1;
            self.ended(before);
        }
        if self.only.is_some_and(|only| only != thread) {
            return;
        }
        let live = Live {
            size,
            context,
            late,
        };
        self.live.insert(place, live);
        self.last.insert(thread, place.1);
        let known = self.context(context);
        known.live.put(size);
        known.sums.all.put(size);
        self.bytes = self.bytes.wrapping_add(size);
        if self.bytes > self.peak.bytes {
            self.peak = Peak {
                bytes: self.bytes,
                number: self.peak.number + 1,
                instructions: self.instructions,
            };
        }
    }

    /// Returns the context in which it was allocated.
    fn free(&mut self, place: (i32, u64)) -> Option<u32> {
        let live = self.live.get_mut(&place)?;
        if live.late > 0 {
            live.late -= 1;
            return None;
        }
        let live = self.live.remove(&place)?;
        self.ended(live);
        Some(live.context)
    }

    fn ended(&mut self, live: Live) {
        self.context(live.context).live.take(live.size);
        self.bytes = self.bytes.wrapping_sub(live.size);
    }

    /// How many instructions had been executed when most bytes were allocated.
    #[must_use]
    pub fn peak_at(&self) -> u64 {
        self.peak.instructions
    }

    /// What was allocated, by all calls.
    #[must_use]
    pub fn stacks(&self) -> Vec<Stack> {
        let stacks = self.contexts.iter().map(|(&context, known)| {
            let mut sums = known.sums;
            if known.peak < self.peak.number {
                sums.peak = known.live;
            }
            sums.leaked = known.live;
            Stack {
                calls: self.stacks.calls(context).collect(),
                sums,
            }
        });
        stacks.collect()
    }
}

/// What some calls have allocated, for people: the place of the call that allocates, and of its callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Where they are.
    pub calls: Vec<Place>,
    /// What they have allocated.
    pub sums: Sums,
}

/// Finds where calls are, and adds up those that are in the same functions and lines. `wanted` chooses by the place of
/// the call that allocates. Only `callers` of this one are known.
#[must_use]
pub fn rows(
    stacks: &[Stack],
    callers: usize,
    wanted: &dyn Fn(&InFile) -> bool,
) -> (Vec<Row>, Sums) {
    let is_wanted = |stack: &&Stack| match stack.calls.first() {
        Some(Some(place)) => wanted(place),
        _ => wanted(&InFile {
            file: "".into(),
            offset: 0,
        }),
    };
    let stacks: Vec<&Stack> = stacks.iter().filter(is_wanted).collect();
    let calls = |stack: &'_ Stack| stack.calls.len().min(callers.saturating_add(1));
    let all = stacks.iter().flat_map(|stack| &stack.calls[..calls(stack)]);
    let found = places(all.flatten());
    let mut sums: HashMap<Vec<Place>, Sums> = HashMap::new();
    let mut total = Sums::default();
    for stack in stacks {
        let row = stack.calls[..calls(stack)].iter().map(|call| {
            let place = call.as_ref().and_then(|call| found.get(call));
            // Those on the same line are one.
            Place {
                address: None,
                ..place.cloned().unwrap_or_default()
            }
        });
        sums.entry(row.collect()).or_default().add(&stack.sums);
        total.add(&stack.sums);
    }
    let rows = sums.into_iter().map(|(calls, sums)| Row { calls, sums });
    (rows.collect(), total)
}

impl Client for Allocations {
    fn thread(&mut self, thread: u32, process: i32, _: i32) {
        self.processes.insert(thread, process);
        self.stacks.thread(thread, process);
    }

    fn events(&self) -> Events {
        heap::events()
    }

    fn event(&mut self, thread: u32, event: &Event<'_>) {
        match *event {
            // What the process that has made it has allocated is that one's.
            Event::Forked { maker } => self.stacks.forked(thread, maker),
            Event::Executed => {
                let process = self.processes.get(&thread).copied().unwrap_or(0);
                // The memory is gone, and nothing could free it.
                let gone = self.live.extract_if(|(other, _), _| *other == process);
                let gone: Vec<Live> = gone.map(|(_, live)| live).collect();
                for live in gone {
                    self.ended(live);
                }
                self.stacks.executed_program(thread, process);
            }
            _ => {}
        }
        let stacks = &mut self.stacks;
        let context = |stack| stacks.at(thread, stack);
        if let Some(change) = self.heap.event(thread, event, context) {
            self.change(thread, change);
        }
    }

    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        self.instructions += upto as u64;
        self.stacks.executed(thread, block, upto, accesses);
    }

    fn visit(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: Accesses<'_>) {
        self.instructions += upto as u64;
        let last = upto.checked_sub(1).map(|last| block.insns[last].transfer);
        if let Some(Transfer::Call | Transfer::IndirectCall | Transfer::Return) = last {
            self.stacks.executed(thread, block, upto, accesses.all());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocated(address: u64, size: u64, context: u32) -> Change {
        Change::Allocated {
            address,
            size,
            context,
        }
    }

    /// What contexts 1 and 2 have allocated after these changes of thread 0.
    fn sums(changes: &[Change]) -> [Sums; 2] {
        let mut all = Allocations::default();
        for &change in changes {
            all.change(0, change);
        }
        [1, 2].map(|context| {
            let known = all.context(context);
            Sums {
                leaked: known.live,
                ..known.sums
            }
        })
    }

    fn amount(allocations: u64, bytes: u64) -> Amount {
        Amount { allocations, bytes }
    }

    #[test]
    fn each_has_its_share_of_the_peak() {
        let freed = |address| Change::Freed { address };
        let [one, two] = sums(&[
            allocated(16, 100, 1),
            allocated(32, 10, 2),
            // The first peak is here.
            freed(16),
            allocated(48, 50, 2),
            // And the last one here.
            allocated(64, 70, 1),
            freed(48),
            allocated(80, 1, 1),
        ]);
        assert_eq!((one.peak, two.peak), (amount(1, 70), amount(2, 60)));
        assert_eq!((one.leaked, two.leaked), (amount(2, 71), amount(1, 10)));
        assert_eq!((one.all, two.all), (amount(3, 171), amount(2, 60)));
        assert_eq!((one.temporary, two.temporary), (0, 0));
    }

    #[test]
    fn memory_that_is_freed_at_once_is_temporary() {
        let freed = |address| Change::Freed { address };
        let [one, two] = sums(&[
            allocated(16, 8, 1),
            freed(16),
            allocated(16, 8, 1),
            allocated(32, 8, 2),
            freed(16),
            freed(32),
            // It is known of no allocation.
            freed(48),
        ]);
        assert_eq!((one.temporary, two.temporary), (1, 0));
        assert_eq!((one.leaked, two.leaked), (amount(0, 0), amount(0, 0)));
    }

    #[test]
    fn memory_that_is_allocated_again_was_freed_by_others() {
        let freed = Change::Freed { address: 16 };
        let [one, two] = sums(&[allocated(16, 8, 1), allocated(16, 9, 2), freed]);
        assert_eq!((one.leaked, two.leaked), (amount(0, 0), amount(1, 9)));
        let moved = Change::Moved {
            from: 16,
            to: 32,
            size: 20,
            context: 2,
        };
        let [one, two] = sums(&[allocated(16, 8, 1), moved]);
        assert_eq!((one.leaked, two.leaked), (amount(0, 0), amount(1, 20)));
    }
}
