//! System calls and their events on AArch64. `scripts/cross.sh` runs this under an emulator.
#![cfg(target_arch = "aarch64")]

mod syscalls;

mod machine {
    use std::arch::{asm, global_asm};

    // A system call with the registers from `registers` on: x0 to x17, then the flags; afterwards they are what
    // they are
    // then. What is called before and after is called as detours do it.
    global_asm!(
        ".globl hodo_test_call",
        "hodo_test_call:",
        "stp x29, x30, [sp, #-48]!",
        "stp x19, x20, [sp, #16]",
        "str x21, [sp, #32]",
        "mov x19, x0",
        "mov x20, x1",
        "mov x21, x2",
        "ldr x0, [x19, #144]",
        "msr nzcv, x0",
        "ldr x0, [x19, #0]",
        "ldr x1, [x19, #8]",
        "ldr x2, [x19, #16]",
        "ldr x3, [x19, #24]",
        "ldr x4, [x19, #32]",
        "ldr x5, [x19, #40]",
        "ldr x6, [x19, #48]",
        "ldr x7, [x19, #56]",
        "ldr x8, [x19, #64]",
        "ldr x9, [x19, #72]",
        "ldr x10, [x19, #80]",
        "ldr x11, [x19, #88]",
        "ldr x12, [x19, #96]",
        "ldr x13, [x19, #104]",
        "ldr x14, [x19, #112]",
        "ldr x15, [x19, #120]",
        "ldr x16, [x19, #128]",
        "ldr x17, [x19, #136]",
        "str x30, [sp, #-16]!",
        "blr x20",
        "ldr x30, [sp], #16",
        "svc #0",
        "str x30, [sp, #-16]!",
        "blr x21",
        "ldr x30, [sp], #16",
        "str x0, [x19, #0]",
        "str x1, [x19, #8]",
        "str x2, [x19, #16]",
        "str x3, [x19, #24]",
        "str x4, [x19, #32]",
        "str x5, [x19, #40]",
        "str x6, [x19, #48]",
        "str x7, [x19, #56]",
        "str x8, [x19, #64]",
        "str x9, [x19, #72]",
        "str x10, [x19, #80]",
        "str x11, [x19, #88]",
        "str x12, [x19, #96]",
        "str x13, [x19, #104]",
        "str x14, [x19, #112]",
        "str x15, [x19, #120]",
        "str x16, [x19, #128]",
        "str x17, [x19, #136]",
        "mrs x0, nzcv",
        "str x0, [x19, #144]",
        "ldr x21, [sp, #32]",
        "ldp x19, x20, [sp, #16]",
        "ldp x29, x30, [sp], #48",
        "ret",
    );

    unsafe extern "C" {
        pub fn hodo_test_call(registers: *mut u64, enter: usize, exit: usize);
        /// Part of the compiler's library.
        fn __clear_cache(start: *mut u8, end: *mut u8);
    }

    /// How many registers that takes.
    pub const REGISTERS: usize = 19;
    /// Which of them has the number of the system call.
    pub const NUMBER: usize = 8;

    /// What one of them may have instead of a value: the last has four flags.
    pub fn value(register: usize, value: u64) -> u64 {
        if register == 18 { 0xA << 28 } else { value }
    }

    /// Where a signal has interrupted a thread.
    pub fn pc(context: &mut libc::ucontext_t) -> &mut u64 {
        &mut context.uc_mcontext.pc
    }

    /// Sets this thread's control block, and prepares the use of new code.
    ///
    /// # Safety
    /// The block is one, and the code is mapped.
    pub unsafe fn set_block(block: u64, code: u64, len: u64) {
        // SAFETY: the second word that the thread pointer leads to is libc's, which does not use it.
        unsafe {
            asm!("mrs {at}, tpidr_el0", "str {block}, [{at}, #8]", at = out(reg) _, block = in(reg) block);
            __clear_cache(code as *mut u8, (code + len) as *mut u8);
        }
    }
}
