//! Registers as Linux stores them in signal frames.

use super::Registers;

/// The kernel's `ucontext_t`, up to the general registers.
#[repr(C)]
pub(crate) struct Context {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    mask: u64,
    /// Room for more signals, padding to a multiple of 16, and the address of a fault.
    unused: [u64; 17],
    registers: Registers,
}

const _: () = assert!(core::mem::offset_of!(Context, registers) == 184);

/// The bits of the processor's state that say which kind of branch came to the instruction. In guarded code, only a
/// landing may follow one.
const BRANCH_TYPE: u64 = 0xC00;

impl Context {
    /// Does something with the registers. They are not copied: that would call `memcpy`, which may have a probe.
    pub(crate) fn with<T>(&mut self, action: impl FnOnce(&mut Registers) -> T) -> T {
        let pc = self.registers.pc;
        let result = action(&mut self.registers);
        if self.registers.pc != pc {
            self.registers.pstate &= !BRANCH_TYPE;
        }
        result
    }

    /// The address of the next instruction.
    pub(crate) fn pc(&self) -> u64 {
        self.registers.pc
    }

    /// Sets the address of the next instruction.
    pub(crate) fn set_pc(&mut self, pc: u64) {
        self.registers.pc = pc;
        self.registers.pstate &= !BRANCH_TYPE;
    }

    /// The signals that were blocked.
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    /// Pops this many bytes from the stack, or puts them back if negative.
    pub(crate) fn pop(&mut self, bytes: i64) {
        self.registers.sp = self.registers.sp.wrapping_add_signed(bytes);
    }
}
