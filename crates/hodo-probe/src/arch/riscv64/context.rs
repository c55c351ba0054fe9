//! Registers as Linux stores them in signal frames.

use super::Registers;

/// The kernel's `ucontext_t`, up to the general registers.
#[repr(C)]
pub(crate) struct Context {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    mask: u64,
    /// Room for more signals, and padding to a multiple of 16.
    unused: [u64; 16],
    registers: Registers,
}

const _: () = assert!(core::mem::offset_of!(Context, registers) == 176);

impl Context {
    /// Does something with the registers. They are not copied: that would call `memcpy`, which may have a probe.
    pub(crate) fn with<T>(&mut self, action: impl FnOnce(&mut Registers) -> T) -> T {
        action(&mut self.registers)
    }

    /// The address of the next instruction.
    pub(crate) fn pc(&self) -> u64 {
        self.registers.pc
    }

    /// Sets the address of the next instruction.
    pub(crate) fn set_pc(&mut self, pc: u64) {
        self.registers.pc = pc;
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
