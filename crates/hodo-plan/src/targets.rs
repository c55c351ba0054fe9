//! The addresses that control may reach: sets that the sweep fills.

use std::ops::Range;

use crate::bits::Bits;

/// The address sets that the sweep fills.
pub(crate) struct Targets {
    /// All targets of branches.
    pub any: Bits,
    /// Targets whose source is unknown or in another piece.
    pub foreign: Bits,
    /// Targets of direct calls.
    pub called: Bits,
    /// Addresses that code forms or data holds, except jump tables.
    pub taken: Bits,
    /// Starts of pieces that may or may not be functions; the caller fills it.
    pub doubtful: Bits,
    /// Bytes of code that are read or written as data, and perhaps more.
    pub data: Bits,
    /// Targets of direct calls after which the flags are used.
    pub returns_flags: Bits,
}

impl Targets {
    /// Creates empty sets of addresses in these ranges, which are sorted and do not overlap.
    pub fn new(ranges: &[Range<u64>]) -> Self {
        let bits = || Bits::of(ranges.iter().cloned());
        Self {
            any: bits(),
            foreign: bits(),
            called: bits(),
            taken: bits(),
            doubtful: bits(),
            data: bits(),
            returns_flags: bits(),
        }
    }

    pub fn mark(&self, addr: u64) {
        self.any.set(addr);
        self.foreign.set(addr);
    }

    /// Marks all addresses of a range, which must lie within one run of code.
    pub fn mark_all(&self, range: Range<u64>) {
        self.any.set_all(range.clone());
        self.foreign.set_all(range);
    }

    /// Marks an address that may be reached from anywhere.
    pub fn take(&self, addr: u64) {
        self.mark(addr);
        self.taken.set(addr);
    }
}
