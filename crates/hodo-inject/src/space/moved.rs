//! Which instructions in islands stand for which instructions of the program.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

use hodo_abi::Span;
use hodo_codegen::statemap::{AppPoint, StateMap};

use super::{Space, Written};

/// Which instructions in islands stand for which of the program.
#[derive(Debug, Default)]
pub struct Moved {
    /// Made when needed: most stopped threads are in code from which nothing was moved, and there may be millions of
    /// instructions.
    map: OnceCell<StateMap>,
    /// Code of hodo where a thread is at no instruction of the program, even if it is within the program's code.
    ways: Vec<Span>,
}

impl Moved {
    /// What is known about an address space.
    pub fn of(space: &mut Space) -> Rc<Self> {
        let moved = Self::ways_of(space);
        moved.map.get_or_init(|| map(&space.written));
        moved
    }

    /// The same, but which instructions stand for which may not be known yet.
    pub fn ways_of(space: &mut Space) -> Rc<Self> {
        if let Some(moved) = space.written.moved() {
            return moved;
        }
        let mut ways = space.written.ways().to_vec();
        ways.sort_unstable();
        let moved = Rc::new(Self {
            map: OnceCell::new(),
            ways,
        });
        space.written.set_moved(&moved);
        moved
    }

    /// Whether a thread there is neither at an instruction of the program nor at one that stands for it.
    pub fn is_on_the_way(&self, at: u64) -> bool {
        let next = self.ways.partition_point(|way| way.start <= at);
        let way = next.checked_sub(1).map(|index| self.ways[index]);
        way.is_some_and(|way| at < way.end)
    }

    /// The program's instruction for which this one of hodo's stands.
    pub fn app_point(&self, at: u64) -> Option<AppPoint> {
        self.map.get()?.at(at)
    }

    /// Whether it is known which instructions stand for which.
    #[cfg(test)]
    pub fn is_known(&self) -> bool {
        self.map.get().is_some()
    }

    /// Where an instruction of the program is executed, if not in place.
    pub fn copy_of(&self, at: u64) -> Option<u64> {
        self.map.get()?.copy_of(at)
    }
}

fn map(written: &Written) -> StateMap {
    // Jumps that lead into an island stay.
    let leads = written.sites().iter().map(|site| site.at);
    let leads: HashSet<u64> = leads.chain(written.traps()).collect();
    let mut ours = Vec::new();
    for stubs in written.stubs() {
        let starts = stubs.starts();
        ours.extend(starts.map(|(at, original)| (at, AppPoint::unprobed(original))));
    }
    let calls = written.copies().iter().filter(|copied| copied.call);
    let calls: BTreeSet<u64> = calls.map(|copied| copied.copy).collect();
    let mut copies = Vec::new();
    for copied in written.copies().iter() {
        let original = copied.original;
        if copied.copy != copied.before {
            ours.push((copied.before, AppPoint::unprobed(original)));
        }
        // If a probe makes the instruction's system call, the call is complete there: it must not be repeated.
        let is_done =
            copied.before < copied.copy && calls.range(copied.before..copied.copy).next().is_some();
        if !is_done {
            ours.push((copied.copy, AppPoint::probed(original)));
        }
        if !copied.call && !leads.contains(&original) {
            copies.push((original, copied.before));
        }
    }
    StateMap::new(ours, copies)
}
