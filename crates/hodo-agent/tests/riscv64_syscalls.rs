//! System calls and their events on RISC-V. `scripts/cross.sh` runs this under an emulator.
#![cfg(target_arch = "riscv64")]

mod syscalls;

mod machine {
    use std::arch::{asm, global_asm};

    // A system call with the registers from `registers` on, a0 to a7, then t0 to t6; afterwards they are what they are
    // then. What is called before and after is called as detours do it.
    global_asm!(
        ".globl hodo_test_call",
        "hodo_test_call:",
        "addi sp, sp, -48",
        "sd ra, 40(sp)",
        "sd s2, 32(sp)",
        "sd s3, 24(sp)",
        "sd s4, 16(sp)",
        "mv s4, a0",
        "mv s2, a1",
        "mv s3, a2",
        "ld a0, 0(s4)",
        "ld a1, 8(s4)",
        "ld a2, 16(s4)",
        "ld a3, 24(s4)",
        "ld a4, 32(s4)",
        "ld a5, 40(s4)",
        "ld a6, 48(s4)",
        "ld a7, 56(s4)",
        "ld t0, 64(s4)",
        "ld t1, 72(s4)",
        "ld t2, 80(s4)",
        "ld t3, 88(s4)",
        "ld t4, 96(s4)",
        "ld t5, 104(s4)",
        "ld t6, 112(s4)",
        "addi sp, sp, -16",
        "sd ra, 0(sp)",
        "jalr ra, 0(s2)",
        "ld ra, 0(sp)",
        "addi sp, sp, 16",
        "ecall",
        "addi sp, sp, -16",
        "sd ra, 0(sp)",
        "jalr ra, 0(s3)",
        "ld ra, 0(sp)",
        "addi sp, sp, 16",
        "sd a0, 0(s4)",
        "sd a1, 8(s4)",
        "sd a2, 16(s4)",
        "sd a3, 24(s4)",
        "sd a4, 32(s4)",
        "sd a5, 40(s4)",
        "sd a6, 48(s4)",
        "sd a7, 56(s4)",
        "sd t0, 64(s4)",
        "sd t1, 72(s4)",
        "sd t2, 80(s4)",
        "sd t3, 88(s4)",
        "sd t4, 96(s4)",
        "sd t5, 104(s4)",
        "sd t6, 112(s4)",
        "ld ra, 40(sp)",
        "ld s2, 32(sp)",
        "ld s3, 24(sp)",
        "ld s4, 16(sp)",
        "addi sp, sp, 48",
        "ret",
    );

    unsafe extern "C" {
        pub fn hodo_test_call(registers: *mut u64, enter: usize, exit: usize);
    }

    /// How many registers that takes.
    pub const REGISTERS: usize = 15;
    /// Which of them has the number of the system call.
    pub const NUMBER: usize = 7;

    /// What one of them may have instead of a value.
    pub fn value(_: usize, value: u64) -> u64 {
        value
    }

    /// Where a signal has interrupted a thread.
    pub fn pc(context: &mut libc::ucontext_t) -> &mut u64 {
        &mut context.uc_mcontext.__gregs[0]
    }

    /// Sets this thread's control block, and prepares the use of new code.
    ///
    /// # Safety
    /// The block is one.
    pub unsafe fn set_block(block: u64, _code: u64, _len: u64) {
        // SAFETY: this thread's word below its thread pointer is libc's, which does not use it.
        unsafe { asm!("sd {}, -8(tp)", "fence.i", in(reg) block) };
    }
}
