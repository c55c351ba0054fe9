//! What of an address space is hodo's, and what the program sees of it.

use hodo_abi::Span;

use super::Process;
use crate::shown::Shown;

impl Process {
    /// What the program is to read of its mappings.
    pub(crate) fn shown(&self) -> Shown {
        Shown::new(&self.code, &self.writable)
    }

    /// Whether memory of hodo is in one of these ranges.
    pub(crate) fn has_own(&self, ranges: [Span; 2]) -> bool {
        let regions = self.regions.iter().map(|region| region.span);
        let mut own = regions.chain(self.mapped.iter().copied());
        own.any(|own| ranges.iter().any(|range| own.overlaps(*range)))
    }

    /// Whether the table has no room for a target.
    pub(crate) fn is_crowded(&self) -> bool {
        self.targets.is_crowded
    }

    /// Where an instruction of the program was translated to, if it was.
    pub(crate) fn known(&self, pc: u64) -> Option<u64> {
        self.known.get(pc)
    }

    /// Where the table of targets leads from an address of the program, if it has that.
    pub(crate) fn leads(&self, pc: u64) -> Option<u64> {
        self.targets.leads(pc)
    }
}
