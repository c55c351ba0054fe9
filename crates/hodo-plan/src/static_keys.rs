//! Branches on static keys, which the program itself turns from nops into jumps and back while it runs. We must not
//! change, share or copy their bytes. Whatever they are in the file, both directions are possible.

use std::ops::Range;

use hodo_isa::code::{Flow, Insn, Step};
use hodo_symbols::Branch;

use crate::bits::Bits;
use crate::targets::Targets;

/// Why a function must not be changed.
pub(crate) const IN_THE_WAY: &str = "a static branch is in the way";
/// Why the instruction itself cannot have a probe.
pub(crate) const IS_ONE: &str = "it is a static branch, which the program itself changes";
/// Why nothing in an image is changed: it is unknown where its branches are.
pub(crate) const DAMAGED: &str = "its table of static branches is damaged";

/// The branches of an image.
#[derive(Debug, Default)]
pub(crate) struct Statics {
    /// Sorted; they do not overlap.
    branches: Vec<Branch>,
    /// What is wrong with their table, if that is why they are unknown.
    pub damage: Option<String>,
}

impl Statics {
    pub fn find(bytes: &[u8]) -> Self {
        match hodo_symbols::keys(bytes) {
            Ok(keys) => Self {
                branches: keys.branches,
                damage: None,
            },
            Err(error) => Self {
                branches: Vec::new(),
                damage: Some(error.to_string()),
            },
        }
    }

    /// Their bytes.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.branches.iter().map(|branch| branch.code..branch.end())
    }

    /// Marks the branches and everything to which they may lead.
    pub fn mark(&self, targets: &Targets) {
        for branch in &self.branches {
            for addr in [branch.code, branch.target, branch.end()] {
                targets.any.set(addr);
            }
        }
    }

    /// Sets the bit of each of their bytes.
    pub fn fill(&self, bits: &Bits) {
        self.ranges().flatten().for_each(|addr| bits.set(addr));
    }

    /// Returns whether one of them has a byte in a range.
    pub fn any(&self, range: Range<u64>) -> bool {
        let at = self.branches.partition_point(|b| b.end() <= range.start);
        let next = self.branches.get(at);
        next.is_some_and(|branch| branch.code < range.end)
    }

    /// Those from an address on.
    pub fn from(&self, addr: u64) -> &[Branch] {
        &self.branches[self.branches.partition_point(|b| b.code < addr)..]
    }

    /// Returns the instructions in the order of their addresses, with these branches as conditional branches.
    pub fn seen(&self, start: u64, code: impl Iterator<Item = Insn>) -> impl Iterator<Item = Insn> {
        let mut branches = self.from(start).iter().peekable();
        code.map(move |mut insn| {
            while branches.next_if(|b| b.code < insn.addr).is_some() {}
            if let Some(branch) = branches.next_if(|b| b.code == insn.addr) {
                insn.flow = Flow::Branch(branch.target);
                insn.padding = false;
            }
            insn
        })
    }

    /// Does the same to steps; `found` gets the index of each of these branches.
    pub fn see(&self, steps: &mut [Step], mut found: impl FnMut(usize)) {
        let start = steps.first().map_or(u64::MAX, |step| step.addr);
        for branch in self.from(start) {
            match steps.binary_search_by_key(&branch.code, |step| step.addr) {
                Ok(at) => {
                    steps[at].flow = Flow::Branch(branch.target);
                    steps[at].padding = false;
                    found(at);
                }
                Err(at) if at == steps.len() => return,
                Err(_) => {}
            }
        }
    }
}
