//! Registers as handlers see them, and as the kernel stores them in signal frames.

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
