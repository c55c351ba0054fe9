//! Registers as handlers see them, and as the kernel stores them in signal frames.

use hodo_isa::native::simulate::Simulation;

use super::common;
use crate::cause::Cause;
use crate::islands;
use crate::layout::Head;

/// The program's general registers at a probe, in the order of the kernel's `user_regs_struct`. What a handler changes
/// is changed for the program.
///
/// When a handler begins, vector and floating-point registers hold the program's values if the handler begins by
/// reading them. Whatever it does with them, the program gets its own values back.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Registers {
    /// Address of the instruction that comes next: the probed one, in a handler before it. If a handler changes it, the
    /// program continues there, and the probed instruction is not executed.
    pub pc: u64,
    pub ra: u64,
    pub sp: u64,
    pub gp: u64,
    pub tp: u64,
    pub t0: u64,
    pub t1: u64,
    pub t2: u64,
    pub s0: u64,
    pub s1: u64,
    pub a0: u64,
    pub a1: u64,
    pub a2: u64,
    pub a3: u64,
    pub a4: u64,
    pub a5: u64,
    pub a6: u64,
    pub a7: u64,
    pub s2: u64,
    pub s3: u64,
    pub s4: u64,
    pub s5: u64,
    pub s6: u64,
    pub s7: u64,
    pub s8: u64,
    pub s9: u64,
    pub s10: u64,
    pub s11: u64,
    pub t3: u64,
    pub t4: u64,
    pub t5: u64,
    pub t6: u64,
}

impl Registers {
    /// An argument of the function that begins here, by the C convention (RISC-V ELF psABI, integer calling
    /// convention): one of the first eight, counted from 0, that are integers or pointers.
    #[must_use]
    pub fn argument(&self, index: usize) -> Option<u64> {
        self.words().get(10..18)?.get(index).copied()
    }

    /// Makes the function that begins here return this value without running.
    ///
    /// # Safety
    /// The probe must be at a function's first instruction, so that `ra` is the return address.
    pub unsafe fn return_now(&mut self, value: u64) {
        self.a0 = value;
        self.pc = self.ra;
    }

    /// The registers by number; the program counter is in the place of the register that is always zero.
    pub(crate) fn words(&self) -> &[u64; 32] {
        // SAFETY: these are 32 words in the order of the processor's register numbers, in C's layout.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u64; 32] {
        // SAFETY: as above.
        unsafe { &mut *core::ptr::from_mut(self).cast() }
    }
}

/// What the engine does with the registers of a thread that was stopped.
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
        // SAFETY: the shared code holds the addresses of both there.
        let (wanted, head) = unsafe { (*(self.s0 as *const Self), &*(self.s1 as *const Head)) };
        let after = self.s2 + 8;
        *self = wanted;
        if wanted.pc == head.addr {
            self.pc = after;
        }
        true
    }
}

/// Executes an instruction on registers.
pub(crate) fn simulate(
    simulation: &Simulation,
    registers: &mut Registers,
) -> Result<(), core::convert::Infallible> {
    // The program counter is in the place of the register that is always zero.
    registers.pc = simulation.run_on(registers.words_mut());
    Ok(())
}

/// Returns whether a fault came from the engine's use of memory for the program: it uses none.
pub(crate) fn faulted(_: &Cause, _: &mut Registers) -> bool {
    false
}
