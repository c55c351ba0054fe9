//! System calls of RISC-V Linux.
//!
//! `riscv_flush_icache` (`flush_icache_mm` in the kernel's `arch/riscv/mm/cacheflush.c`) executes `fence.i` here and at once on all
//! processors that run the process, after what was written before; the others do so before they run it the next time. So does
//! already each write of code to `/proc/self/mem` (`flush_icache_user_page` in `arch/riscv/include/asm/cacheflush.h`). That write is a
//! `memcpy`, byte by byte unless address and length are multiples of four (`arch/riscv/lib/memcpy.S`).

use core::arch::asm;

/// Numbers, from the kernel's `include/uapi/asm-generic/unistd.h` and `arch/riscv/include/uapi/asm/unistd.h`.
pub mod number {
    pub use crate::generic::number::*;

    pub const FLUSH_ICACHE: usize = 259;
}

/// Makes a system call.
///
/// # Safety
/// As the system call.
pub unsafe fn call(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel keeps all registers but a0; the caller answers for what the call does.
    unsafe {
        asm!(
            "ecall",
            in("a7") number,
            inlateout("a0") args[0] => result,
            in("a1") args[1],
            in("a2") args[2],
            in("a3") args[3],
            in("a4") args[4],
            in("a5") args[5],
            options(nostack),
        );
    }
    result
}

/// See [`crate::sys::writes_words`].
pub fn writes_words() -> bool {
    false
}
