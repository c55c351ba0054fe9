//! Registers as handlers see them, and as the kernel stores them in signal frames.

/// The flags N, Z, C and V in [`Registers::pstate`].
pub(super) const FLAGS: u64 = 0xF000_0000;

/// The program's general registers at a probe, in the order of the kernel's `user_pt_regs`. What a handler changes is
/// changed for the program.
///
/// When a handler begins, vector and floating-point registers hold the program's values if the handler begins by
/// reading them. Whatever it does with them, the program gets its own values back.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registers {
    /// `x0` to `x30`.
    pub x: [u64; 31],
    /// The stack pointer.
    pub sp: u64,
    /// Address of the instruction that comes next: the probed one, in a handler before it. If a handler changes it, the
    /// program continues there, and the probed instruction is not executed.
    pub pc: u64,
    /// The flags N, Z, C and V, as bits 31 to 28. Changes of other bits have no effect.
    pub pstate: u64,
}

impl Registers {
    /// An argument of the function that begins here, by the C convention (Procedure Call Standard for the Arm 64-bit
    /// Architecture, 6.8.2): one of the first eight, counted from 0, that are integers or pointers.
    #[must_use]
    pub fn argument(&self, index: usize) -> Option<u64> {
        self.x[..8].get(index).copied()
    }

    /// Makes the function that begins here return this value without running.
    ///
    /// # Safety
    /// The probe must be at a function's first instruction, so that `x30` is the return address.
    pub unsafe fn return_now(&mut self, value: u64) {
        self.x[0] = value;
        self.pc = self.x[30];
    }
}
