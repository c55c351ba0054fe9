//! Ranges that can be copied.

use core::fmt;
use core::ops::Range;

/// Addresses, or offsets, from `start` on to the one before `end`. `core::ops::Range` with `Copy`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    /// The first.
    pub start: u64,
    /// The one after the last.
    pub end: u64,
}

impl Span {
    /// None.
    pub const EMPTY: Self = Self::at(0, 0);

    /// This many from `start` on.
    #[must_use]
    pub const fn at(start: u64, len: u64) -> Self {
        Self {
            start,
            end: start.wrapping_add(len),
        }
    }

    /// How many there are.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.wrapping_sub(self.start)
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether this is one of them.
    #[must_use]
    pub const fn contains(self, at: u64) -> bool {
        // One comparison: some callers ask of each word of a process.
        at.wrapping_sub(self.start) < self.len()
    }

    /// Whether the two have some in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The same, to iterate over or to look up in a slice.
    #[must_use]
    pub const fn range(self) -> Range<u64> {
        self.start..self.end
    }
}

impl From<Range<u64>> for Span {
    fn from(Range { start, end }: Range<u64>) -> Self {
        Self { start, end }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_in_it_and_the_end_is_not() {
        let span = Span::at(0x1000, 0x100);
        assert_eq!(span, Span::from(0x1000..0x1100));
        assert_eq!(span.len(), 0x100);
        let inside = [0xFFF, 0x1000, 0x10FF, 0x1100].map(|at| span.contains(at));
        assert_eq!(inside, [false, true, true, false]);
        assert!(Span::EMPTY.is_empty() && !Span::EMPTY.contains(0));
        // The last address there is.
        let last = Span::at(u64::MAX, 1);
        assert!(last.contains(u64::MAX) && !last.contains(0));
    }

    #[test]
    fn neighbours_do_not_overlap() {
        let span = Span::at(0x1000, 0x100);
        for (start, len, overlaps) in [
            (0xF00, 0x100, false),
            (0xF00, 0x101, true),
            (0x1010, 1, true),
            (0x10FF, 0x100, true),
            (0x1100, 1, false),
        ] {
            assert_eq!(span.overlaps(Span::at(start, len)), overlaps, "{start:#x}");
            assert_eq!(Span::at(start, len).overlaps(span), overlaps, "{start:#x}");
        }
    }
}
