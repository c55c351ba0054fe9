//! Registers as handlers see them, and as the kernel keeps them in signal frames.

use hodo_isa::native::simulate::Simulation;

use super::common;
use crate::islands;
use crate::layout::Head;

/// The general registers of the program at a probe, in the order of the kernel's `user_regs_struct`. What a handler
/// changes is changed for the program.
///
/// Vector and floating-point registers are the program's when a handler begins, if it begins by reading them; whatever
/// it does with them, the program's come back.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Registers {
    /// Address of the instruction that comes next: the probed one in a handler before it. A handler that changes it has
    /// the program go on there; the probed instruction is not executed then.
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
    /// convention): the first eight, counted from 0, that are integers or pointers.
    #[must_use]
    pub fn argument(&self, index: usize) -> Option<u64> {
        self.words().get(10..18)?.get(index).copied()
    }

    /// Has the function that begins here return this value without running.
    ///
    /// # Safety
    /// The probe must stand at a function's first instruction, so that `ra` is its return address.
    pub unsafe fn return_now(&mut self, value: u64) {
        self.a0 = value;
        self.pc = self.ra;
    }

    /// By their numbers; the program counter is in the place of the register that is always zero.
    fn words(&self) -> &[u64; 32] {
        // SAFETY: it is 32 words in the order of the processor's numbers, in C's form.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    fn words_mut(&mut self) -> &mut [u64; 32] {
        // SAFETY: as above.
        unsafe { &mut *core::ptr::from_mut(self).cast() }
    }
}

/// `ucontext_t` as the kernel has it, up to the general registers.
#[repr(C)]
pub(crate) struct Context {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    mask: u64,
    /// Room for more signals, and to the next multiple of 16.
    unused: [u64; 16],
    registers: Registers,
}

const _: () = assert!(core::mem::offset_of!(Context, registers) == 176);

impl Context {
    /// The registers; the program counter as it is in the context.
    pub(crate) fn registers(&self) -> Registers {
        self.registers
    }

    /// Sets them.
    pub(crate) fn set(&mut self, registers: &Registers) {
        self.registers = *registers;
    }

    /// The address of the next instruction.
    pub(crate) fn pc(&self) -> u64 {
        self.registers.pc
    }

    /// Sets it.
    pub(crate) fn set_pc(&mut self, pc: u64) {
        self.registers.pc = pc;
    }

    /// The address of the breakpoint that has made the signal.
    pub(crate) fn breakpoint(&self) -> u64 {
        self.registers.pc
    }

    /// Which signals were blocked.
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    /// Leaves a function in the middle of whatever it does.
    pub(crate) fn leave(&mut self, pc: u64, sp: u64) {
        (self.registers.pc, self.registers.sp) = (pc, sp);
    }

    /// Executes an instruction on the registers, which needs no function of others; whether that is so.
    pub(crate) fn simulate(&mut self, simulation: &Simulation) -> bool {
        simulate(simulation, &mut self.registers).is_ok()
    }

    /// Takes this many bytes from the stack, or puts them back.
    pub(crate) fn pop(&mut self, bytes: i64) {
        self.registers.sp = self.registers.sp.wrapping_add_signed(bytes);
    }

    /// At the breakpoint to which the shared code comes when a handler wants the program to go on elsewhere, or with
    /// another stack pointer: only a signal can set all registers. The way on after the detour's call of the shared
    /// code is two instructions later, where these two have no work left.
    pub(crate) fn switched(&mut self) -> bool {
        let here = self.registers.pc;
        if islands::start(here).is_none_or(|start| here != start + common::switch_offset()) {
            return false;
        }
        // SAFETY: the shared code has the addresses of both there.
        let (wanted, head) = unsafe {
            (
                *(self.registers.s0 as *const Registers),
                &*(self.registers.s1 as *const Head),
            )
        };
        let after = self.registers.s2 + 8;
        self.registers = wanted;
        if wanted.pc == head.addr {
            self.registers.pc = after;
        }
        true
    }
}

/// Executes an instruction on registers.
pub(crate) fn simulate(
    simulation: &Simulation,
    registers: &mut Registers,
) -> Result<(), core::convert::Infallible> {
    // In the place of the register that is always zero is the program counter.
    registers.pc = simulation.run_on(registers.words_mut());
    Ok(())
}

/// Whether a fault is one of memory that the engine has used for the program: it uses none.
pub(crate) fn faulted(_: i32, _: i32, _: u64, _: &mut Context) -> bool {
    false
}
