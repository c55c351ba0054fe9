//! Translations of code that has changed since.
//!
//! A translation of code that may change begins with a check: if the code is not what was translated, a word says where
//! to continue. At first, that is a breakpoint. Later, it is a translation of what was found there. That has a check,
//! too: the translations of a piece of code form a row, from the oldest to the youngest, and each stays correct: the
//! program may bring old code back. Words lead only to younger translations, so no thread follows them for ever.
//!
//! If a row becomes long, a new one begins, and the first translation of each former row leads to the first one of the
//! new row.

use hodo_abi::Span;
use rustc_hash::FxHashMap;

/// The maximum number of translations in a row.
const MOST: usize = 8;

/// Where code is compared with what was translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Check {
    /// The breakpoint.
    pub(crate) trap: u64,
    /// The word that holds where to jump if the code has changed: at first to the breakpoint.
    pub(crate) cell: u64,
    /// The program's instruction.
    pub(crate) pc: u64,
    /// Where its translation begins.
    pub(crate) entry: u64,
}

/// Translations of a piece of code.
#[derive(Debug, Clone)]
struct Row {
    /// The words of the first ones of this row and of former rows.
    firsts: Vec<u64>,
    /// The breakpoint of the last one.
    last: u64,
    len: usize,
}

/// What a thread finds at the breakpoint of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The youngest translation is out of date.
    Last,
    /// There are younger translations.
    Older,
}

/// All checks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes {
    /// By their breakpoints.
    checks: FxHashMap<u64, Check>,
    /// Their breakpoints by where translations begin.
    entries: FxHashMap<u64, u64>,
    /// Code that has changed.
    rows: FxHashMap<u64, Row>,
}

impl Changes {
    /// Adds checks.
    pub(crate) fn add(&mut self, checks: &[Check]) {
        for check in checks {
            self.checks.insert(check.trap, *check);
            self.entries.insert(check.entry, check.trap);
        }
    }

    /// The check of the translation that begins here.
    pub(crate) fn of(&self, entry: u64) -> Option<Check> {
        self.checks.get(self.entries.get(&entry)?).copied()
    }

    /// The check with this breakpoint.
    pub(crate) fn check(&self, trap: u64) -> Option<&Check> {
        self.checks.get(&trap)
    }

    /// Whether a check is that of the youngest translation. `known`: where its code is known to be translated to.
    pub(crate) fn found(&self, check: &Check, known: u64) -> Found {
        let is_last = match self.rows.get(&check.pc) {
            Some(row) => row.last == check.trap,
            None => check.entry == known,
        };
        if is_last { Found::Last } else { Found::Older }
    }

    /// All translations, which are not used any more: instructions, and where they begin.
    pub(crate) fn take_all(&mut self) -> Vec<(u64, u64)> {
        self.rows.clear();
        self.entries.clear();
        let all = self.checks.values();
        all.map(|check| (check.pc, check.entry)).collect()
    }

    /// Other code is in a range, which does not change any more.
    pub(crate) fn forget(&mut self, range: Span) {
        self.rows.retain(|&pc, _| !range.contains(pc));
    }

    /// The code of the last translation in a row has changed; `new` is the check of its new translation. Returns the
    /// words that lead there from now on, and whether it is the first one of a new row.
    pub(crate) fn append(&mut self, old: &Check, new: &Check) -> (Vec<u64>, bool) {
        let row = self.rows.entry(old.pc).or_insert_with(|| Row {
            firsts: vec![old.cell],
            last: old.trap,
            len: 1,
        });
        row.last = new.trap;
        row.len += 1;
        if row.len <= MOST {
            return (vec![old.cell], false);
        }
        let mut words = row.firsts.clone();
        words.push(old.cell);
        row.firsts.push(new.cell);
        row.len = 1;
        (words, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_only_to_younger_translations() {
        let check = |number: u64| Check {
            trap: 100 * number,
            cell: 100 * number + 8,
            pc: 1,
            entry: 100 * number + 16,
        };
        let mut changes = Changes::default();
        let mut leads: FxHashMap<u64, u64> = FxHashMap::default();
        let mut first = 1;
        for number in 1..50 {
            let (old, new) = (check(number), check(number + 1));
            changes.add(&[old]);
            assert_eq!(changes.found(&old, check(first).entry), Found::Last);
            let (words, is_first) = changes.append(&old, &new);
            for word in words {
                assert!(leads.insert(word, number + 1) < Some(number + 1));
            }
            assert_eq!(changes.found(&old, check(first).entry), Found::Older);
            if is_first {
                first = number + 1;
            }
        }
        // From the very first one, the youngest is found soon.
        let (mut at, mut count) = (1, 0);
        while at != 50 {
            at = leads[&check(at).cell];
            count += 1;
        }
        assert!(count <= MOST, "{count}");
    }

    #[test]
    fn what_was_forgotten_begins_anew() {
        let check = |number: u64| Check {
            trap: number,
            cell: number + 1,
            pc: 1,
            entry: number + 2,
        };
        let (old, second, new) = (check(100), check(200), check(300));
        let mut changes = Changes::default();
        changes.add(&[old, second, new]);
        let _ = changes.append(&old, &second);
        changes.forget(Span::at(1, 1));
        assert_eq!(changes.found(&new, new.entry), Found::Last);
        assert_eq!(changes.found(&second, new.entry), Found::Older);
    }
}
