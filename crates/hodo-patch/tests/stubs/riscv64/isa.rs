//! RISC-V's part of the tests.

use std::arch::asm;

use hodo_isa::Via;

use crate::writer::Random;

/// `t1` is free at all functions.
pub const FREE: Via = Via::Free(6);
/// `t0` is not free, so jumps put it on the stack.
pub const KEPT: Via = Via::Kept(5);
/// Another one, which has an argument.
pub const KEPT_TOO: Via = Via::Kept(13);
/// What displaced instructions may use.
pub const DEAD: u32 = 1 << 6;
/// Registers that are free at the entry of all functions.
pub const BEFORE: u32 = 0xF000_0040 | 1 << 15 | 1 << 14;
/// And after them.
pub const AFTER: u32 = 0xF003_F0E0;
/// Sets of registers that are free before the body and after it.
pub const SETS: [(u32, u32); 6] = [
    (BEFORE, AFTER),
    (0, 0),
    (1 << 15, 1 << 12),
    (1 << 15 | 1 << 14, 1 << 12 | 1 << 28),
    (1 << 14 | 1 << 30 | 1 << 31, 1 << 13 | 1 << 5 | 1 << 28),
    (1 << 14 | 1 << 15 | 1 << 30 | 1 << 31, 1 << 5 | 7 << 28),
];
/// Registers that hold the same value everywhere, or the return address.
pub const FIXED: u32 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4;
/// Registers that functions keep.
pub const SAVED: u32 = 0x0FFC_0300;
/// `c.ebreak`
pub const BREAK: &[u8] = &[0x02, 0x90];
/// What names of compiled functions about it have in them.
pub const NATIVE: &str = "riscv64";
/// The C compiler.
pub const COMPILER: &str = "riscv64-linux-gnu-gcc";
/// How far away stubs can be that no jump reaches. They are led to through the memory nearby.
pub const FAR: &[u64] = &[1 << 32];
/// The detours of probes cannot be there.
pub const PROBES_FAR: &[u64] = &[];
/// How far away those of library calls can be.
pub const CALLS_REACH: u64 = 1 << 30;

/// Bytes that a site with such a jump displaces.
pub fn room(via: Via) -> u64 {
    match via {
        Via::Kept(_) => 16,
        _ => 8,
    }
}

/// The thread pointer.
pub fn thread_pointer() -> usize {
    let tp: usize;
    // SAFETY: only reads the thread pointer.
    unsafe { asm!("mv {}, tp", out(reg) tp) };
    tp
}

/// The time counter.
pub fn time() -> u64 {
    let time: u64;
    // SAFETY: it only reads the time.
    unsafe { asm!("rdtime {}", out(reg) time) };
    time
}

/// Makes code visible that was written.
pub fn flush(start: usize, end: usize) {
    // SAFETY: riscv_flush_icache changes nothing else.
    unsafe { libc::syscall(259, start, end, 0) };
}

/// Where an interrupted thread is.
pub fn pc(context: &mut libc::ucontext_t) -> &mut u64 {
    &mut context.uc_mcontext.__gregs[0]
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
            "mv s2, sp",
            "mv sp, {sp}",
            "jalr {function}",
            "mv sp, s2",
            sp = in(reg) sp,
            function = in(reg) function,
            inlateout("a0") a => result,
            in("a1") b,
            out("s2") _,
            clobber_abi("C"),
        );
    }
    result
}

/// The option for clang.
pub const TARGET: &str = "--target=riscv64-linux-gnu";
/// The option for calls without a PLT.
pub const NO_PLT: &str = "-mno-plt";

/// Adds options that only this instruction set has.
pub fn variant(random: &mut Random, clang: bool, options: &mut Vec<&'static str>) {
    if clang || random.one_in(5) {
        options.push("-mabi=lp64d");
        let all = ["-march=rv64gc", "-march=rv64gc", "-march=rv64g"];
        options.push(if clang { random.pick(&all) } else { all[2] });
    }
    let own = ["-mno-relax", "-msave-restore"];
    options.extend(own.into_iter().filter(|_| random.one_in(4)));
}
