//! Lines that were used last: what changes nothing in a cache need not be recorded.
//!
//! An access to the line that was used last in its set finds it there, and leaves the cache as it is, whatever line
//! gives way when one is missing. Most accesses are of this kind. Threads have tables with the line of each set that
//! they used last, compare accesses with these, and record only the others. A table may have fewer entries than a cache
//! has sets: the line that was used last in several sets is that of its own set, too.

/// The maximum number of entries of a table.
pub(crate) const MOST_ENTRIES: u32 = 256;

/// The sets of a cache, to which lines belong by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineSets {
    /// Bytes of a line, as a power of two.
    shift: u8,
    /// Entries of a table, less one: a power of two less one.
    mask: u32,
}

impl LineSets {
    /// The sets of a cache with lines of this number of bytes, which has this number of sets. `None`: threads cannot
    /// compare accesses with these. Both must be powers of two, a line must have 64 bytes to a page of 4 KiB, and there
    /// must be two sets.
    #[must_use]
    pub fn new(line: u32, sets: u64) -> Option<Self> {
        let fits = line.is_power_of_two() && (64..=4096).contains(&line);
        let fits = fits && sets.is_power_of_two() && sets >= 2;
        let entries = u32::try_from(sets).unwrap_or(u32::MAX).min(MOST_ENTRIES);
        fits.then(|| Self {
            shift: line.trailing_zeros() as u8,
            mask: entries - 1,
        })
    }

    /// Bytes of a line, as a power of two.
    pub(crate) fn shift(self) -> u8 {
        self.shift
    }

    /// Bytes of a line.
    pub(crate) fn line(self) -> u32 {
        1 << self.shift
    }

    /// The highest number of an entry.
    pub(crate) fn mask(self) -> u32 {
        self.mask
    }
}

/// What threads compare with the lines that they used last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recent {
    /// Lines from which instructions are fetched.
    pub fetches: LineSets,
    /// Lines of data.
    pub data: LineSets,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_that_cannot_be_compared_are_refused() {
        assert!(LineSets::new(64, 64).is_some() && LineSets::new(4096, 16).is_some());
        assert!(LineSets::new(32, 64).is_none() && LineSets::new(64, 1).is_none());
        assert!(LineSets::new(64, 48).is_none() && LineSets::new(8192, 4).is_none());
        let many = LineSets::new(64, 1 << 40).expect("a large cache");
        assert_eq!(many.mask(), MOST_ENTRIES - 1);
    }
}
