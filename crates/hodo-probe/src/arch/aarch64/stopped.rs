//! What the engine does with the registers of a thread that was stopped.

use hodo_isa::aarch64::simulate::Simulation;

use super::registers::FLAGS;
use super::{Registers, common};
use crate::cause::Cause;
use crate::islands;
use crate::layout::Head;

impl Registers {
    /// The address of the breakpoint that has stopped it.
    pub(crate) fn breakpoint(&self) -> u64 {
        self.pc
    }

    /// Leaves a function, whatever it is in the middle of.
    pub(crate) fn leave(&mut self, pc: u64, sp: u64) {
        (self.pc, self.sp) = (pc, sp);
    }

    /// Executes an instruction on the registers without calling functions outside the engine. Returns whether it did.
    pub(crate) fn simulate(&mut self, simulation: &Simulation) -> bool {
        simulate(simulation, self).is_ok()
    }

    /// Handles the breakpoint that the shared code reaches when a handler wants the program to continue elsewhere, or
    /// with another stack pointer: only a signal can set all registers. After the detour's call of the shared code,
    /// execution continues two instructions later, where those two have nothing left to do.
    pub(crate) fn switched(&mut self) -> bool {
        let here = self.pc;
        if islands::start(here).is_none_or(|start| here != start + common::switch_offset()) {
            return false;
        }
        let [frame, head, link] = [self.x[19], self.x[20], self.x[21]];
        // SAFETY: the shared code holds the addresses of both there.
        let (wanted, head) = unsafe { (*(frame as *const Self), &*(head as *const Head)) };
        let state = self.pstate & !FLAGS;
        *self = wanted;
        self.pstate = state | wanted.pstate & FLAGS;
        if wanted.pc == head.addr {
            self.pc = link + 8;
        }
        true
    }
}

/// Executes an instruction on registers.
pub(crate) fn simulate(
    simulation: &Simulation,
    registers: &mut Registers,
) -> Result<(), core::convert::Infallible> {
    registers.pc = simulation.run_on(&mut registers.x, registers.pstate & FLAGS);
    Ok(())
}

/// Returns whether a fault came from the engine's use of memory for the program: it uses none.
pub(crate) fn faulted(_: &Cause, _: &mut Registers) -> bool {
    false
}
