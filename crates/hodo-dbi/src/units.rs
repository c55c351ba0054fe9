//! Translations of code that may change.
//!
//! Code that the program may write to, or that comes from no file, is made at run time, and changes. What was translated
//! of it in one go is a unit. Nothing jumps into a unit directly, only through words that can be changed. When a page
//! changes, its units end: a breakpoint replaces the translation of each of their instructions.

use hodo_abi::Span;
use rustc_hash::FxHashMap;

/// What was translated in one go.
#[derive(Debug, Clone)]
struct Unit {
    /// Where it is in the cache.
    at: Span,
    /// Pages of the program's code.
    pages: Vec<u64>,
    /// Instructions, and their translations.
    instructions: Vec<(u64, u64)>,
}

/// All units.
#[derive(Debug, Clone, Default)]
pub(crate) struct Units {
    units: FxHashMap<u32, Unit>,
    next: u32,
    /// Units by page.
    pages: FxHashMap<u64, Vec<u32>>,
    /// Breakpoints that have replaced instructions, and these instructions.
    ended: FxHashMap<u64, u64>,
}

impl Units {
    /// Adds a unit.
    pub(crate) fn add(&mut self, at: Span, pages: Vec<u64>, instructions: Vec<(u64, u64)>) {
        for &page in &pages {
            self.pages.entry(page).or_default().push(self.next);
        }
        let unit = Unit {
            at,
            pages,
            instructions,
        };
        self.units.insert(self.next, unit);
        self.next += 1;
    }

    /// Whether an address in the cache is in a unit with code from this page.
    pub(crate) fn holds(&self, page: u64, at: u64) -> bool {
        let units = self.pages.get(&page).into_iter().flatten();
        let mut units = units.filter_map(|unit| self.units.get(unit));
        units.any(|unit| unit.at.contains(at))
    }

    /// Ends all units with code from a range. Returns their instructions, and the translations of these.
    pub(crate) fn end(&mut self, range: Span) -> Vec<(u64, u64)> {
        let is_in = |page: &&u64| range.contains(**page);
        let pages: Vec<u64> = match range.len() / 4096 < self.pages.len() as u64 {
            true => (range.start..range.end).step_by(4096).collect(),
            false => self.pages.keys().filter(is_in).copied().collect(),
        };
        let mut ended = Vec::new();
        for page in pages {
            for number in self.pages.remove(&page).unwrap_or_default() {
                let Some(unit) = self.units.remove(&number) else {
                    continue;
                };
                for other in unit.pages.iter().filter(|&&other| other != page) {
                    if let Some(units) = self.pages.get_mut(other) {
                        units.retain(|&unit| unit != number);
                    }
                }
                ended.extend(unit.instructions);
            }
        }
        self.ended.extend(ended.iter().map(|&(pc, at)| (at, pc)));
        ended
    }

    /// The instruction that a breakpoint has replaced.
    pub(crate) fn ended(&self, trap: u64) -> Option<u64> {
        self.ended.get(&trap).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_end_with_their_pages() {
        let mut units = Units::default();
        let span = |start, end| Span::from(start..end);
        units.add(
            span(0, 64),
            vec![0x1000, 0x2000],
            vec![(0x1ff0, 0), (0x2000, 8)],
        );
        units.add(span(64, 99), vec![0x2000], vec![(0x2800, 64)]);
        units.add(span(99, 120), vec![0x9000], vec![(0x9000, 99)]);
        assert!(units.holds(0x2000, 64) && !units.holds(0x1000, 64));
        assert_eq!(units.end(span(0x1000, 0x2000)), [(0x1ff0, 0), (0x2000, 8)]);
        assert_eq!((units.ended(8), units.ended(64)), (Some(0x2000), None));
        assert!(!units.holds(0x2000, 0) && units.holds(0x2000, 64));
        assert_eq!(units.end(span(0, 1 << 40)).len(), 2);
        assert_eq!(units.end(span(0, 1 << 40)).len(), 0);
    }
}
