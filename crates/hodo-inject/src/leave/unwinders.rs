//! Finds out whether a thread is in an unwinder.

use std::iter::once;
use std::ops::Range;

use hodo_ptrace::maps::Mapping;

use crate::space::Space;

/// How far above the stack pointer to search for unwinders.
const UNWINDING: usize = 16 << 10;

/// The code of unwinders.
pub struct Unwinders<'a> {
    ranges: Vec<Range<u64>>,
    space: &'a Space,
}

impl<'a> Unwinders<'a> {
    pub fn new(maps: &[Mapping], space: &'a Space) -> Self {
        let is_unwinder = |mapping: &&Mapping| {
            let name = mapping.path.file_name().and_then(|name| name.to_str());
            mapping.executable
                && name.is_some_and(|name| name.contains("libgcc_s") || name.contains("libunwind"))
        };
        let libraries = maps.iter().filter(is_unwinder).map(|m| m.start..m.end);
        let functions = space
            .written()
            .unwinders()
            .iter()
            .map(|function| function.range());
        Self {
            ranges: libraries.chain(functions).collect(),
            space,
        }
    }

    /// Whether an unwinder is running and has met our code, if a thread is at `pc` and the stack begins with these
    /// words. `calls`: the same without those that are no return addresses.
    pub fn are_met(&self, pc: u64, calls: &[u64], words: &[u64]) -> bool {
        let top = |words: &[u64]| -> Vec<u64> {
            let words = words.iter().take(UNWINDING / 8).copied();
            words.chain(once(pc)).collect()
        };
        // An unwinder at its first instruction has not begun; that address is never a return address.
        let written = self.space.written();
        let begins = |word: u64| {
            let mut held = written.held().iter();
            written.unwinding().contains(&word) || held.any(|&(at, _)| at == word)
        };
        let unwinding = |word: u64| {
            let mut ranges = self.ranges.iter();
            ranges.any(|range| range.contains(&word)) && !begins(word)
        };
        top(calls).into_iter().any(unwinding)
            && top(words).into_iter().any(|word| self.space.holds(word))
    }
}
