//! Code of instruction sets whose calls put the return address in a register: RISC-V and AArch64. Nothing here names an
//! instruction.

use crate::code::{self, Transaction};
pub use crate::effects::Flow;
pub use relocate::Relocated;

pub mod cfa;
pub(crate) mod entry;
pub(crate) mod relocate;

/// Conditions of branches that compare two registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "comparisons; below is less, of numbers without a sign"
)]
pub enum If {
    Equal,
    NotEqual,
    Less,
    NotLess,
    Below,
    NotBelow,
}

/// Where an instruction is in a sequence of a load that reserves memory (`lr`) and the store that depends on it (`sc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// In no sequence.
    Outside,
    /// It is an `lr`.
    First,
    /// Between the two.
    Between,
    /// It is an `sc`.
    Last,
}

/// One instruction, as a planner of probes sees it. `Why` is the type of the reason that it must not run elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct Step<Why> {
    /// Its address.
    pub addr: u64,
    /// What it does with control.
    pub flow: Flow,
    /// Its length.
    pub len: u8,
    /// The registers that it reads, or that a breakpoint handler or the kernel may look at. One bit for each register
    /// number; on AArch64 also one for the flags.
    pub uses: u32,
    /// The registers that it overwrites in any case.
    pub writes: u32,
    /// The register in which a call puts the return address.
    pub link: Option<u8>,
    /// It does nothing: padding, if nothing leads to it.
    pub padding: bool,
    /// Why it must not run elsewhere; `None` if it may.
    pub immovable: Option<Why>,
    /// Where it is in a sequence of a load that reserves memory and the store that depends on it.
    pub part: Part,
    /// It enters the kernel, so the instruction alone does not say what happens next.
    pub leaves: bool,
}

impl<Why> Step<Why> {
    /// The address after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.addr.wrapping_add(u64::from(self.len))
    }

    /// Whether it is a call.
    #[must_use]
    pub fn is_call(&self) -> bool {
        matches!(self.flow, Flow::Call(_) | Flow::IndirectCall)
    }

    /// Where it branches or jumps to.
    pub(crate) fn target(&self) -> Option<u64> {
        match self.flow {
            Flow::Branch(to) | Flow::Jump(to) => Some(to),
            _ => None,
        }
    }

    /// The function that it calls.
    pub(crate) fn callee(&self) -> Option<u64> {
        match self.flow {
            Flow::Call(to) => Some(to),
            _ => None,
        }
    }

    /// The same in the terms of planners. The instruction set says what it reads, and whether it can be moved.
    #[inline]
    pub(crate) fn for_planners(self, reads: u32, movable: bool) -> code::Step {
        code::Step {
            addr: self.addr,
            flow: self.flow,
            len: self.len,
            reads,
            writes: self.writes,
            padding: self.padding,
            movable,
            transaction: match self.part {
                Part::Outside => Transaction::None,
                Part::First => Transaction::Reserves,
                Part::Between | Part::Last => Transaction::Reserved,
            },
            leaves: self.leaves,
        }
    }
}
