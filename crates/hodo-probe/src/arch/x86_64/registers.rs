//! Registers as handlers see them, and as the kernel stores them in signal frames.

/// The program's general registers at a probe. What a handler changes is changed for the program.
///
/// When a handler begins, vector and floating-point registers hold the program's values if the handler begins by
/// reading them. Whatever it does with them, the program gets its own values back.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Registers {
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rbx: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub flags: u64,
    /// Address of the instruction that comes next: the probed one, in a handler before it. If a handler changes it, the
    /// program continues there, and the probed instruction is not executed.
    pub pc: u64,
}

impl Registers {
    /// An argument of the function that begins here, by the C convention (System V ABI, x86-64 supplement, 3.2.3): one
    /// of the first six, counted from 0, that are integers or pointers.
    #[must_use]
    pub fn argument(&self, index: usize) -> Option<u64> {
        [self.rdi, self.rsi, self.rdx, self.rcx, self.r8, self.r9]
            .get(index)
            .copied()
    }

    /// Makes the function that begins here return this value without running.
    ///
    /// # Safety
    /// The probe must be at a function's first instruction, so that the stack pointer points to the return address.
    pub unsafe fn return_now(&mut self, value: u64) {
        self.rax = value;
        // SAFETY: by the caller's promise, the return address is there.
        self.pc = unsafe { (self.rsp as *const u64).read() };
        self.rsp += 8;
    }

    pub(super) fn general(&mut self) -> &mut [u64; 16] {
        // SAFETY: (1) the first sixteen fields are words in the order of the processor's register numbers; (2) the
        // layout is C's.
        unsafe { &mut *(&raw mut *self).cast() }
    }
}
