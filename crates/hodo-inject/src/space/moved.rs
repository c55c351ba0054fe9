//! Which instructions in islands stand for which instructions of the program.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

use hodo_abi::Span;

use super::Space;

/// The program's instruction for which one of hodo's stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing {
    /// Its address.
    pub original: u64,
    /// Whether its probes have run.
    pub probed: bool,
}

/// Which instructions in islands stand for which of the program.
#[derive(Debug, Default)]
pub struct Moved {
    /// Found when needed: most stopped threads are in code from which nothing was moved, and there may be millions of
    /// instructions.
    found: OnceCell<Found>,
    /// Code of hodo where a thread is at no instruction of the program, even if it is within the program's code.
    ways: Vec<Span>,
}

#[derive(Debug, Default)]
struct Found {
    /// hodo's instructions at which the state is that of an instruction of the program, and that instruction.
    ours: Vec<(u64, Standing)>,
    /// Instructions of the program that are executed elsewhere, and where.
    theirs: Vec<(u64, u64)>,
}

impl Moved {
    /// What is known about an address space.
    pub fn of(space: &mut Space) -> Rc<Self> {
        let moved = Self::ways_of(space);
        moved.found.get_or_init(|| Found::of(space));
        moved
    }

    /// The same, but which instructions stand for which may not be known yet.
    pub fn ways_of(space: &mut Space) -> Rc<Self> {
        if let Some(moved) = &space.moved {
            return Rc::clone(moved);
        }
        let mut moved = Self::default();
        moved.ways.clone_from(&space.ways);
        moved.ways.sort_unstable();
        let moved = Rc::new(moved);
        space.moved = Some(Rc::clone(&moved));
        moved
    }

    /// Whether a thread there is neither at an instruction of the program nor at one that stands for it.
    pub fn is_on_the_way(&self, at: u64) -> bool {
        let next = self.ways.partition_point(|way| way.start <= at);
        let way = next.checked_sub(1).map(|index| self.ways[index]);
        way.is_some_and(|way| at < way.end)
    }

    /// The program's instruction for which this one of hodo's stands, if the state is the program's.
    pub fn standing(&self, at: u64) -> Option<Standing> {
        find(&self.found.get()?.ours, at)
    }

    /// Whether it is known which instructions stand for which.
    #[cfg(test)]
    pub fn is_known(&self) -> bool {
        self.found.get().is_some()
    }

    /// Where an instruction of the program is executed, if not in place.
    pub fn copy_of(&self, at: u64) -> Option<u64> {
        find(&self.found.get()?.theirs, at)
    }
}

impl Found {
    fn of(space: &Space) -> Self {
        // Jumps that lead into an island stay.
        let leads = space.sites.iter().map(|site| site.at);
        let leads: HashSet<u64> = leads.chain(space.traps.keys().copied()).collect();
        let mut moved = Self::default();
        for stubs in &space.stubs {
            let standing = |(at, original)| {
                (
                    at,
                    Standing {
                        original,
                        probed: false,
                    },
                )
            };
            moved.ours.extend(stubs.starts().map(standing));
        }
        let calls = space.copies.iter().filter(|copied| copied.call);
        let calls: BTreeSet<u64> = calls.map(|copied| copied.copy).collect();
        for copied in space.copies.iter() {
            let mut stands = |at, probed| {
                let original = copied.original;
                moved.ours.push((at, Standing { original, probed }));
            };
            if copied.copy != copied.before {
                stands(copied.before, false);
            }
            // If a probe makes the instruction's system call, the call is complete there: it must not be repeated.
            let is_done = copied.before < copied.copy
                && calls.range(copied.before..copied.copy).next().is_some();
            if !is_done {
                stands(copied.copy, true);
            }
            if !copied.call && !leads.contains(&copied.original) {
                moved.theirs.push((copied.original, copied.before));
            }
        }
        moved.ours.sort_unstable();
        moved.theirs.sort_unstable();
        moved
    }
}

fn find<T: Copy>(pairs: &[(u64, T)], at: u64) -> Option<T> {
    let index = pairs.partition_point(|pair| pair.0 < at);
    pairs
        .get(index)
        .filter(|pair| pair.0 == at)
        .map(|pair| pair.1)
}
