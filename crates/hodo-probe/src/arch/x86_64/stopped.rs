//! What the engine does with the registers of a thread that was stopped.

use hodo_isa::native::simulate::{Fault, Simulation};

use super::Registers;
use super::memory::Own;

impl Registers {
    /// The address of the breakpoint that has stopped it.
    pub(crate) fn breakpoint(&self) -> u64 {
        self.pc.wrapping_sub(1)
    }

    /// Leaves a function, whatever it is in the middle of.
    pub(crate) fn leave(&mut self, pc: u64, sp: u64) {
        const DIRECTION: u64 = 0x400;
        (self.pc, self.rsp) = (pc, sp);
        self.flags &= !DIRECTION;
    }

    /// Handles a breakpoint of the shared code, which has none here.
    pub(crate) fn switched(&mut self) -> bool {
        false
    }

    /// Executes an instruction on the registers without calling functions outside the engine. Returns whether it did.
    /// It never does here: most instructions that can be simulated can also be moved.
    pub(crate) fn simulate(&mut self, _: &Simulation) -> bool {
        false
    }
}

/// Executes an instruction on registers.
pub(crate) fn simulate(simulation: &Simulation, registers: &mut Registers) -> Result<(), Fault> {
    let (mut flags, mut pc) = (registers.flags, registers.pc);
    let result = simulation.run(registers.general(), &mut flags, &mut pc, &mut Own);
    (registers.flags, registers.pc) = (flags, pc);
    result
}
