//! AArch64's part of the tests.

use std::arch::asm;

use hodo_isa::Via;

use crate::writer::Random;

/// Jumps need no register.
pub const FREE: Via = Via::Nothing;
/// Nor is one put on the stack, except for stubs that are far away.
pub const KEPT: Via = Via::Nothing;
/// Nor here.
pub const KEPT_TOO: Via = Via::Nothing;
/// Displaced instructions need none.
pub const DEAD: u32 = 0;
/// Registers that are free at the entry of all functions: `x9` to `x15`.
pub const BEFORE: u32 = 0xFE00;
/// And after them.
pub const AFTER: u32 = 0xFEFE;
/// Sets of registers that are free before the body and after it.
pub const SETS: [(u32, u32); 6] = [
    (BEFORE, AFTER),
    (0, 0),
    (1 << 15, 1 << 12),
    (3 << 14, 3 << 11),
    (7 << 9, 7 << 5),
    (0xF << 10, 0xF << 11),
];
/// `x16`, `x17`, the platform's register, the frame pointer, the link register, and none.
pub const FIXED: u32 = 7 << 16 | 7 << 29;
/// Registers that functions keep.
pub const SAVED: u32 = 0x3FF8_0000;
/// `brk #0`
pub const BREAK: &[u8] = &[0, 0, 0x20, 0xD4];
/// What names of compiled functions about it have in them.
pub const NATIVE: &str = "aarch64";
/// The C compiler.
pub const COMPILER: &str = "aarch64-linux-gnu-gcc";
/// How far away stubs can be that no jump of the program reaches.
pub const FAR: &[u64] = &[1 << 30, 1 << 32];
/// The same for the detours of probes.
pub const PROBES_FAR: &[u64] = &[1 << 32];
/// How far away those of library calls can be.
pub const CALLS_REACH: u64 = 1 << 31;

/// Bytes that a site displaces: more than the jump, so that some are instructions after it.
pub fn room(_: Via) -> u64 {
    8
}

/// The thread pointer.
pub fn thread_pointer() -> usize {
    let tp: usize;
    // SAFETY: only reads the thread pointer.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) tp) };
    tp
}

/// The time counter.
pub fn time() -> u64 {
    let time: u64;
    // SAFETY: it only reads the time.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) time) };
    time
}

/// Makes code visible that was written. Changing the protection has told the emulator.
pub fn flush(start: usize, end: usize) {
    for line in (start..end).step_by(16) {
        // SAFETY: cache maintenance of memory that can be read.
        unsafe { asm!("dc cvau, {line}", "dsb ish", "ic ivau, {line}", line = in(reg) line) };
    }
    // SAFETY: barriers.
    unsafe { asm!("dsb ish", "isb") };
}

/// Where an interrupted thread is.
pub fn pc(context: &mut libc::ucontext_t) -> &mut u64 {
    &mut context.uc_mcontext.pc
}

/// Calls a function of two arguments with this stack pointer.
///
/// # Safety
/// The stack there must be free.
pub unsafe fn call_at(
    function: extern "C-unwind" fn(u64, u64) -> u64,
    sp: u64,
    a: u64,
    b: u64,
) -> u64 {
    let result: u64;
    // SAFETY: the function restores its registers.
    unsafe {
        asm!(
            "mov x20, sp",
            "mov sp, {sp}",
            "blr {function}",
            "mov sp, x20",
            sp = in(reg) sp,
            function = in(reg) function,
            inlateout("x0") a => result,
            in("x1") b,
            out("x20") _,
            clobber_abi("C"),
        );
    }
    result
}

/// The option for clang.
pub const TARGET: &str = "--target=aarch64-linux-gnu";
/// The option for calls without a PLT.
pub const NO_PLT: &str = "-fno-plt";

/// Adds options that only this instruction set has.
pub fn variant(random: &mut Random, clang: bool, options: &mut Vec<&'static str>) {
    options.push(random.pick(&[
        "-mbranch-protection=none",
        "-mbranch-protection=standard",
        "-mbranch-protection=pac-ret+leaf",
        "-mbranch-protection=pac-ret+b-key",
        "-mbranch-protection=bti",
    ]));
    // clang has no helpers for these.
    if !clang && random.one_in(3) {
        options.push("-mno-outline-atomics");
    }
    if random.one_in(4) {
        options.push("-march=armv8.3-a");
    }
}
