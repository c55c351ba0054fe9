//! Pages whose code seldom changes.
//!
//! The program cannot write to them, so hodo notices when it does. Their code is executed without being compared. Each
//! translation begins with an instruction that does nothing and that a breakpoint can replace.

use std::collections::BTreeMap;

use hodo_abi::Span;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::spans::Spans;

const PAGE: u64 = 4096;
/// Code of a page that has changed this many times is compared from then on.
const MOST: u32 = 64;

/// How hodo notices that code has changed which may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Its pages cannot be written.
    Protected,
    /// It is compared each time before it is executed.
    Compared,
    /// That is not decided yet.
    Undecided,
}

/// A translation that does not compare the code that it was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Uncompared {
    /// The program's instruction.
    pub(crate) pc: u64,
    /// The address after all code that it depends on.
    pub(crate) end: u64,
    /// Where it begins.
    pub(crate) entry: u64,
}

/// Such pages, and what was translated from them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Protected {
    pages: BTreeMap<u64, Vec<Uncompared>>,
    /// hodo has taken the right to write to one.
    is_used: bool,
    /// How often each page has changed.
    changes: FxHashMap<u64, u32>,
    /// Pages that others may write to.
    shared: FxHashSet<u64>,
    /// Where the kernel writes frames of handlers.
    stacks: Spans,
    /// Former translations, by instruction.
    former: FxHashMap<u64, Vec<u64>>,
}

impl Protected {
    /// How changes of a page are noticed.
    pub(crate) fn notice(&self, page: u64) -> Notice {
        let changes = self.changes.get(&page).copied().unwrap_or(0);
        let others = self.shared.contains(&page) || self.stacks.overlap(Span::at(page, PAGE));
        match self.pages.contains_key(&page) {
            true => Notice::Protected,
            false if changes >= MOST || others => Notice::Compared,
            false => Notice::Undecided,
        }
    }

    /// Code of this page cannot change unnoticed from now on. `by_us`: hodo has taken the right to write to it. Returns
    /// whether it is the first such page.
    pub(crate) fn add_page(&mut self, page: u64, by_us: bool) -> bool {
        self.pages.insert(page, Vec::new());
        let is_first = by_us && !self.is_used;
        self.is_used |= by_us;
        is_first
    }

    /// The pages that cannot change unnoticed.
    pub(crate) fn pages(&self) -> impl Iterator<Item = u64> {
        self.pages.keys().copied()
    }

    /// Whether hodo has taken the right to write to some page.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Others may write to this page.
    pub(crate) fn add_shared(&mut self, page: u64) {
        self.shared.insert(page);
    }

    /// The kernel writes frames of handlers here.
    pub(crate) fn add_stack(&mut self, stack: Span) {
        self.stacks.add(stack);
    }

    /// Adds a translation.
    pub(crate) fn add(&mut self, made: Uncompared) {
        let first = made.pc & !(PAGE - 1);
        for (_, all) in self.pages.range_mut(first..made.end) {
            all.push(made);
        }
    }

    /// The pages of a range that cannot change unnoticed.
    pub(crate) fn within(&self, range: Span) -> impl Iterator<Item = u64> {
        let first = range.start & !(PAGE - 1);
        let pages = self.pages.range(first..range.end.max(first));
        pages.map(|(&page, _)| page)
    }

    /// Whether a translation of an instruction begins here.
    pub(crate) fn has(&self, pc: u64, entry: u64) -> bool {
        let made = self.pages.get(&(pc & !(PAGE - 1))).into_iter().flatten();
        made.into_iter()
            .any(|made| (made.pc, made.entry) == (pc, entry))
    }

    /// Pages in a range are about to change. Returns them, and what was translated from them.
    pub(crate) fn take(&mut self, range: Span) -> Vec<(u64, Vec<Uncompared>)> {
        let pages: Vec<u64> = self.within(range).collect();
        let taken = pages.into_iter().filter_map(|page| {
            *self.changes.entry(page).or_default() += 1;
            Some((page, self.pages.remove(&page)?))
        });
        taken.collect()
    }

    /// All translations, which are not used any more: instructions, and where they begin. The pages stay protected.
    pub(crate) fn take_all(&mut self) -> Vec<(u64, u64)> {
        let all = self.pages.values_mut().flat_map(std::mem::take);
        all.map(|made| (made.pc, made.entry)).collect()
    }

    /// Another mapping is in a range, or its rights have changed.
    pub(crate) fn forget_shared(&mut self, range: Span) {
        self.shared.retain(|&page| !range.contains(page));
    }

    /// This translation of an instruction must not be used any more.
    pub(crate) fn add_former(&mut self, pc: u64, entry: u64) {
        let former = self.former.entry(pc).or_default();
        if !former.contains(&entry) {
            former.push(entry);
        }
    }

    /// Former translations of an instruction.
    pub(crate) fn former(&self, pc: u64) -> &[u64] {
        self.former.get(&pc).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_change_often_are_compared() {
        let mut protected = Protected::default();
        let made = Uncompared {
            pc: 0x1FFE,
            end: 0x2003,
            entry: 7,
        };
        for round in 0..MOST {
            let first = round == 0;
            assert_eq!(protected.notice(0x1000), Notice::Undecided);
            assert_eq!(protected.add_page(0x1000, true), first);
            protected.add_page(0x2000, false);
            assert_eq!(protected.notice(0x1000), Notice::Protected);
            protected.add(made);
            assert_eq!(protected.take(Span::at(0x3000, 1)), []);
            let taken = protected.take(Span::at(0x1234, 1));
            assert_eq!(taken, [(0x1000, vec![made])]);
            let taken = protected.take(Span::at(0x2234, 1));
            assert_eq!(taken, [(0x2000, vec![made])]);
        }
        assert_eq!(protected.notice(0x1000), Notice::Compared);
        protected.add_stack(Span::at(0x5800, 16));
        assert_eq!(protected.notice(0x5000), Notice::Compared);
    }
}
