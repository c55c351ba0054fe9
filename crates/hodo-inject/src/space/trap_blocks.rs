//! What the handler of SIGTRAP knows of an address space's breakpoints.

use hodo_patch::{Island, Lead};

/// Blocks of addresses in islands, by which the handler finds where breakpoints lead.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TrapBlocks {
    /// The newest one that is made; 0: none. Each has the address of the one before it.
    pub(crate) newest: u64,
    /// The newest one that the handler knows of.
    pub(crate) known: u64,
    /// Whether some of the breakpoints will be there.
    needed: bool,
}

impl TrapBlocks {
    /// Whether breakpoints will be there.
    pub(crate) fn are_needed(&self) -> bool {
        self.needed
    }

    /// Adds breakpoints, which will be there. In a full island there is no room for what leads on from them.
    pub(crate) fn add(&mut self, island: &mut Island, traps: &[Lead]) {
        if let Some(block) = (!traps.is_empty())
            .then(|| island.add_traps(traps, self.newest))
            .flatten()
        {
            self.newest = block;
            self.needed = true;
        }
    }

    /// Adds the one by which the dynamic linker announces libraries, at `at`, and from which a thread goes on at `to`.
    /// It may have to be there later, if it is not `needed` now.
    pub(crate) fn add_linker(&mut self, island: &mut Island, at: u64, to: u64, needed: bool) {
        let needed = self.needed || needed;
        self.add(island, &[Lead { at, to }]);
        self.needed = needed;
    }

    /// The dynamic linker's breakpoint is about to be there.
    pub(crate) fn need(&mut self) {
        self.needed = true;
    }
}
