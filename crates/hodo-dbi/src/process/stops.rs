//! Where threads stop in the cache: breakpoints, and what they are for.

use rustc_hash::FxHashMap;

use super::Stop;
use crate::translate::Exit;

/// Breakpoints outside images, without those of code that may change.
#[derive(Debug, Clone, Default)]
pub(super) struct Stops {
    /// Exits to what is not translated, by their breakpoints.
    exits: FxHashMap<u64, Exit>,
    /// Words of exits by the instructions that they wait for.
    waiting: FxHashMap<u64, Vec<u64>>,
    /// Breakpoints before watched system calls, and the instructions that make these.
    calls: FxHashMap<u64, u64>,
    /// Breakpoints where a target is missing in the table, and where to continue when it is known.
    misses: FxHashMap<u64, u64>,
    /// Former translations that lead to newer ones, and their instructions.
    moved: FxHashMap<u64, u64>,
}

impl Stops {
    /// What a breakpoint is for, if it leads to an instruction of the program.
    pub(super) fn leading(&self, trap: u64) -> Option<Stop> {
        let exit = self.exits.get(&trap).map(|exit| exit.target);
        let target = exit.or_else(|| self.moved.get(&trap).copied());
        target.map(Stop::Exit)
    }

    /// What another breakpoint is for.
    pub(super) fn other(&self, trap: u64) -> Option<Stop> {
        let call = self.calls.get(&trap).copied().map(Stop::Call);
        call.or_else(|| self.miss(trap).map(Stop::Miss))
    }

    /// Where a thread continues that misses a target in the table.
    pub(super) fn miss(&self, trap: u64) -> Option<u64> {
        self.misses.get(&trap).copied()
    }

    /// The target of an exit, and its word.
    pub(super) fn exit(&self, trap: u64) -> Option<(u64, u64)> {
        self.exits.get(&trap).map(|exit| (exit.target, exit.cell))
    }

    /// There are these breakpoints before system calls, and where targets are missing.
    pub(super) fn add(&mut self, calls: Vec<(u64, u64)>, misses: Vec<(u64, u64)>) {
        self.calls.extend(calls);
        self.misses.extend(misses);
    }

    /// There is an exit.
    pub(super) fn add_exit(&mut self, exit: Exit) {
        self.exits.insert(exit.trap, exit);
    }

    /// The word of an exit waits for an instruction.
    pub(super) fn wait(&mut self, target: u64, cell: u64) {
        self.waiting.entry(target).or_default().push(cell);
    }

    /// An instruction is translated: the words that have waited for it.
    pub(super) fn end_wait(&mut self, target: u64) -> Vec<u64> {
        self.waiting.remove(&target).unwrap_or_default()
    }

    /// Instructions for which words of exits wait.
    pub(super) fn waiting_for(&self) -> impl Iterator<Item = u64> {
        self.waiting.keys().copied()
    }

    /// Words of exits that wait for these instructions, and the instructions. They do not wait any more.
    pub(super) fn take_waiting(&mut self, is_known: impl Fn(u64) -> bool) -> Vec<(u64, u64)> {
        let found = self.waiting.extract_if(|&target, _| is_known(target));
        let cells = found.map(|(target, cells)| cells.into_iter().map(move |cell| (target, cell)));
        cells.flatten().collect()
    }

    /// The translations of these instructions are gone: exits to them wait again. Returns the words of these exits, and
    /// their breakpoints.
    pub(super) fn unlink(&mut self, is_gone: impl Fn(u64) -> bool) -> Vec<(u64, u64)> {
        let mut unlinked = Vec::new();
        for exit in self.exits.values().filter(|exit| is_gone(exit.target)) {
            unlinked.push((exit.cell, exit.trap));
            let waiting = self.waiting.entry(exit.target).or_default();
            if !waiting.contains(&exit.cell) {
                waiting.push(exit.cell);
            }
        }
        unlinked
    }

    /// A former translation of an instruction leads to a newer one.
    pub(super) fn add_moved(&mut self, from: u64, pc: u64) {
        self.moved.insert(from, pc);
    }
}
