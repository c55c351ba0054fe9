//! Finds out from what was written which instructions stand for which.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

use hodo_codegen::statemap::{AppPoint, StateMap};

use super::Moved;
use crate::space::{Space, Written};

impl Moved {
    /// What is known about an address space.
    pub fn of(space: &mut Space) -> Rc<Self> {
        let moved = Self::ways_of(space);
        moved.map.get_or_init(|| map(&space.written));
        moved
    }

    /// What is known, but which instructions stand for which may not be known yet.
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
}

fn map(written: &Written) -> StateMap {
    // Jumps that lead into an island stay, as do instructions that lead to one of these.
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
        if !copied.call && !copied.leads && !leads.contains(&original) {
            copies.push((original, copied.before));
        }
    }
    StateMap::new(ours, copies)
}
