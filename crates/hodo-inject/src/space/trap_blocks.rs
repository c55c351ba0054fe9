//! What the handler of SIGTRAP knows about the breakpoints of an address space.

use hodo_patch::{Island, Lead};

/// Blocks of addresses in islands, through which the handler finds the targets of breakpoints.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TrapBlocks {
    /// The newest block that exists; 0: none. Each one contains the address of the one before it.
    newest: u64,
    /// The newest one that the handler knows of.
    known: u64,
    /// Whether some of the breakpoints will be set.
    needed: bool,
}

impl TrapBlocks {
    /// Whether the handler is needed and does not know the newest block.
    pub(crate) fn has_news(&self) -> bool {
        self.needed && self.newest != self.known
    }

    /// The newest block, which the handler is about to know.
    pub(crate) fn tell(&mut self) -> u64 {
        self.known = self.newest;
        self.known
    }

    /// Whether breakpoints will be set.
    pub(crate) fn are_needed(&self) -> bool {
        self.needed
    }

    /// Adds breakpoints, which will be set. If the island is full, there is no room for what they lead to.
    pub(crate) fn add(&mut self, island: &mut Island, traps: &[Lead]) {
        if let Some(block) = (!traps.is_empty())
            .then(|| island.add_traps(traps, self.newest))
            .flatten()
        {
            self.newest = block;
            self.needed = true;
        }
    }

    /// Adds the breakpoint by which the dynamic linker announces libraries, at `at`; a thread continues from it at
    /// `to`. It may have to be set later if it is not `needed` now.
    pub(crate) fn add_linker(&mut self, island: &mut Island, at: u64, to: u64, needed: bool) {
        let needed = self.needed || needed;
        self.add(island, &[Lead { at, to }]);
        self.needed = needed;
    }

    /// Adds a breakpoint of a hook. The handler is not needed because of it alone: few programs reach it.
    pub(crate) fn add_hook(&mut self, island: &mut Island, trap: Lead) {
        let needed = self.needed;
        self.add(island, &[trap]);
        self.needed = needed;
    }

    /// The dynamic linker's breakpoint is about to be set.
    pub(crate) fn need(&mut self) {
        self.needed = true;
    }
}
