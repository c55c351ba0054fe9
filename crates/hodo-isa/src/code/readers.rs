//! Iterators over code of any instruction set.

use alloc::vec::Vec;
use core::slice;

use super::{EntryFacts, Insn, LinkUse, Slot, Step};
use crate::{aarch64, linked, riscv64, x86_64};

/// Iterates over code, instruction by instruction. After bytes that are not an instruction it goes on with the next
/// ones.
pub struct Sweep<'a>(
    pub(crate) Kind<x86_64::scan::Sweep<'a>, riscv64::isa::Sweep<'a>, aarch64::isa::Sweep<'a>>,
);

/// The same thing for each of the instruction sets.
#[derive(Clone, Copy)]
pub(crate) enum Kind<X, R, A> {
    X86_64(X),
    Riscv64(R),
    Aarch64(A),
}

impl Iterator for Sweep<'_> {
    type Item = Insn;

    // Planners go through all code of a file with it.
    #[inline(always)]
    fn next(&mut self) -> Option<Insn> {
        match &mut self.0 {
            Kind::X86_64(sweep) => sweep.next(),
            Kind::Riscv64(sweep) => sweep.next(),
            Kind::Aarch64(sweep) => sweep.next(),
        }
    }
}

/// Iterates over code as a planner of probes sees it. Sequences that must not be interrupted are found by control flow
/// within the code, which should therefore be whole functions.
pub struct Steps<'a>(
    pub(crate) Kind<x86_64::steps::Steps<'a>, riscv64::isa::Steps, aarch64::isa::Steps>,
);

impl Iterator for Steps<'_> {
    type Item = Step;

    #[inline]
    fn next(&mut self) -> Option<Step> {
        match &mut self.0 {
            Kind::X86_64(steps) => steps.next().map(Step::from),
            Kind::Riscv64(steps) => steps.next(),
            Kind::Aarch64(steps) => steps.next(),
        }
    }

    /// Overridden to choose the instruction set only once.
    #[inline]
    fn fold<T, F: FnMut(T, Step) -> T>(self, start: T, with: F) -> T {
        match self.0 {
            Kind::X86_64(steps) => steps.map(Step::from).fold(start, with),
            Kind::Riscv64(steps) => steps.fold(start, with),
            Kind::Aarch64(steps) => steps.fold(start, with),
        }
    }
}

/// A buffer for the instructions of a function, reused for one function after another.
#[derive(Default)]
pub struct Room {
    pub(crate) riscv64: Vec<riscv64::scan::Scanned>,
    pub(crate) kept: riscv64::decode::kept::Kept,
    pub(crate) aarch64: Vec<aarch64::scan::Scanned>,
}

/// The instructions of a function, read once for everything that is asked about them. (Those of x86-64 are read each
/// time.)
#[derive(Clone, Copy)]
pub struct Read<'a> {
    pub(crate) code: &'a [u8],
    pub(crate) addr: u64,
    pub(crate) insns: Kind<(), &'a [riscv64::scan::Scanned], &'a [aarch64::scan::Scanned]>,
}

/// Iterates over instructions that were read.
pub struct ReadInsns<'a>(
    Kind<
        x86_64::scan::Sweep<'a>,
        slice::Iter<'a, riscv64::scan::Scanned>,
        slice::Iter<'a, aarch64::scan::Scanned>,
    >,
);

impl Iterator for ReadInsns<'_> {
    type Item = Insn;

    #[inline(always)]
    fn next(&mut self) -> Option<Insn> {
        match &mut self.0 {
            Kind::X86_64(sweep) => sweep.next(),
            Kind::Riscv64(insns) => insns.next().map(riscv64::isa::insn),
            Kind::Aarch64(insns) => insns.next().map(aarch64::isa::insn),
        }
    }
}

impl<'a> Read<'a> {
    /// All of them, in order.
    #[inline]
    #[must_use]
    pub fn insns(&self) -> ReadInsns<'a> {
        ReadInsns(match self.insns {
            Kind::X86_64(()) => Kind::X86_64(x86_64::scan::Sweep::new(self.code, self.addr)),
            Kind::Riscv64(insns) => Kind::Riscv64(insns.iter()),
            Kind::Aarch64(insns) => Kind::Aarch64(insns.iter()),
        })
    }

    /// What the straight-line code from the entry does; see
    /// [`InstructionSet::entry_facts`](super::InstructionSet::entry_facts).
    #[must_use]
    pub fn entry_facts(&self) -> EntryFacts {
        match self.insns {
            Kind::X86_64(()) => x86_64::entry::entry_facts(self.code, self.addr),
            Kind::Riscv64(insns) => riscv64::entry::entry_facts_of(insns),
            Kind::Aarch64(insns) => aarch64::entry::entry_facts_of(insns),
        }
    }

    /// What the function does with its return address, if calls put it in a register; otherwise `None`. `place` returns
    /// how far above the frame's start the slot lies that the instruction at an address uses, if a table says so.
    #[must_use]
    pub fn link_use(&self, place: impl Fn(u64, Slot) -> Option<i32>) -> Option<LinkUse> {
        match self.insns {
            Kind::X86_64(()) => None,
            Kind::Riscv64(insns) => {
                let code = (self.code, self.addr);
                Some(linked::entry::link_use(code, insns, place))
            }
            Kind::Aarch64(insns) => {
                let code = (self.code, self.addr);
                Some(linked::entry::link_use(code, insns, place))
            }
        }
    }

    /// The general registers that one of them uses, and those it overwrites, as in [`Step`]; none on x86-64.
    #[inline]
    #[must_use]
    pub fn registers(&self, index: usize) -> (u32, u32) {
        match self.insns {
            Kind::X86_64(()) => (0, 0),
            Kind::Riscv64(insns) => insns.get(index).map_or((0, 0), riscv64::isa::registers),
            Kind::Aarch64(insns) => insns.get(index).map_or((0, 0), aarch64::isa::registers),
        }
    }
}
