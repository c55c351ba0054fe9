//! Registers as Linux stores them in signal frames.

use super::Registers;

/// The kernel's `ucontext_t`, up to the mask.
#[repr(C)]
pub(crate) struct Context {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    r8_to_r15: [u64; 8],
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    rip: u64,
    eflags: u64,
    segments: u64,
    error: u64,
    trap: u64,
    old_mask: u64,
    cr2: u64,
    floating: u64,
    reserved: [u64; 8],
    mask: u64,
}

impl Context {
    /// Does something with the registers. No function is called to copy them.
    pub(crate) fn with<T>(&mut self, action: impl FnOnce(&mut Registers) -> T) -> T {
        let mut registers = self.registers();
        let result = action(&mut registers);
        self.set(&registers);
        result
    }

    fn registers(&self) -> Registers {
        let [r8, r9, r10, r11, r12, r13, r14, r15] = self.r8_to_r15;
        Registers {
            rax: self.rax,
            rcx: self.rcx,
            rdx: self.rdx,
            rbx: self.rbx,
            rsp: self.rsp,
            rbp: self.rbp,
            rsi: self.rsi,
            rdi: self.rdi,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            flags: self.eflags,
            pc: self.rip,
        }
    }

    fn set(&mut self, registers: &Registers) {
        let r = registers;
        self.r8_to_r15 = [r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15];
        (self.rdi, self.rsi, self.rbp, self.rbx) = (r.rdi, r.rsi, r.rbp, r.rbx);
        (self.rdx, self.rax, self.rcx) = (r.rdx, r.rax, r.rcx);
        (self.rsp, self.rip, self.eflags) = (r.rsp, r.pc, r.flags);
    }

    /// The address of the next instruction.
    pub(crate) fn pc(&self) -> u64 {
        self.rip
    }

    /// Sets the address of the next instruction.
    pub(crate) fn set_pc(&mut self, pc: u64) {
        self.rip = pc;
    }

    /// The signals that were blocked.
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    /// Pops this many bytes from the stack, or puts them back if negative.
    pub(crate) fn pop(&mut self, bytes: i64) {
        self.rsp = self.rsp.wrapping_add_signed(bytes);
    }
}
