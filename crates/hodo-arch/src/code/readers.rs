//! Iterators over code of any instruction set.

use super::{Insn, Step};
use crate::{riscv64, x86_64};

/// Goes through code, instruction by instruction; behind bytes that are none it goes on with the next ones.
pub struct Sweep<'a>(pub(super) Kind<x86_64::scan::Sweep<'a>, riscv64::plan::Sweep<'a>>);

/// The same thing for each of the instruction sets.
pub(super) enum Kind<X, R> {
    X86_64(X),
    Riscv64(R),
}

impl Iterator for Sweep<'_> {
    type Item = Insn;

    // Planners go through all code of a file with it.
    #[inline(always)]
    fn next(&mut self) -> Option<Insn> {
        match &mut self.0 {
            Kind::X86_64(sweep) => sweep.next(),
            Kind::Riscv64(sweep) => sweep.next(),
        }
    }
}

/// Goes through code as a planner of probes does. What is in a sequence that must not be interrupted is found by the control flow within
/// the code, which should be whole functions.
pub struct Steps<'a>(pub(super) Kind<x86_64::steps::Steps<'a>, riscv64::plan::Steps>);

impl Iterator for Steps<'_> {
    type Item = Step;

    #[inline]
    fn next(&mut self) -> Option<Step> {
        match &mut self.0 {
            Kind::X86_64(steps) => steps.next().map(Step::from),
            Kind::Riscv64(steps) => steps.next(),
        }
    }

    /// Asks only once which instruction set it is.
    #[inline]
    fn fold<T, F: FnMut(T, Step) -> T>(self, start: T, with: F) -> T {
        match self.0 {
            Kind::X86_64(steps) => steps.map(Step::from).fold(start, with),
            Kind::Riscv64(steps) => steps.fold(start, with),
        }
    }
}
