//! The addresses that control may reach: sets that the sweep fills.

use crate::bits::Bits;
use crate::image::Image;

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
    pub fn new(image: &Image<'_>) -> Self {
        Self {
            any: Bits::new(&image.text),
            foreign: Bits::new(&image.text),
            called: Bits::new(&image.text),
            taken: Bits::new(&image.text),
            doubtful: Bits::new(&image.text),
            data: Bits::new(&image.text),
            returns_flags: Bits::new(&image.text),
        }
    }

    pub fn mark(&self, addr: u64) {
        self.any.set(addr);
        self.foreign.set(addr);
    }

    /// Marks all addresses of a range, which must lie within one run of code.
    pub fn mark_all(&self, range: std::ops::Range<u64>) {
        self.any.set_all(range.clone());
        self.foreign.set_all(range);
    }

    /// Marks an address that may be reached from anywhere.
    pub fn take(&self, addr: u64) {
        self.mark(addr);
        self.taken.set(addr);
    }
}
