//! System calls of RISC-V Linux.
//!
//! `riscv_flush_icache` (`flush_icache_mm` in the kernel's `arch/riscv/mm/cacheflush.c`) executes `fence.i` here, and
//! at once on all processors that run the process, after everything that was written before; the other processors
//! execute it before they run the process the next time. Each write of code to `/proc/self/mem` already does the same
//! (`flush_icache_user_page` in `arch/riscv/include/asm/cacheflush.h`). That write is a `memcpy`, byte by byte unless
//! address and length are multiples of four (`arch/riscv/lib/memcpy.S`).

use core::arch::asm;

pub use crate::generic::UNIT;

/// Numbers, from the kernel's `include/uapi/asm-generic/unistd.h` and `arch/riscv/include/uapi/asm/unistd.h`.
pub mod number {
    pub use crate::generic::number::*;

    pub const FLUSH_ICACHE: usize = 259;
}

/// Two functions: one returns 1, the other 2. `li a0, 1; ret`
pub const RETURNS: [&[u8]; 2] = [
    &[0x13, 0x05, 0x10, 0, 0x67, 0x80, 0, 0],
    &[0x13, 0x05, 0x20, 0, 0x67, 0x80, 0, 0],
];

/// Makes a system call.
///
/// # Safety
/// As the system call.
pub unsafe fn call(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel keeps all registers but a0 and those for vectors; the caller answers for what the call does.
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
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _, out("v6") _, out("v7") _, out("v8") _, out("v9") _, out("v10") _, out("v11") _, out("v12") _, out("v13") _, out("v14") _, out("v15") _, out("v16") _, out("v17") _, out("v18") _, out("v19") _, out("v20") _, out("v21") _, out("v22") _, out("v23") _, out("v24") _, out("v25") _, out("v26") _, out("v27") _, out("v28") _, out("v29") _, out("v30") _, out("v31") _,
            options(nostack),
        );
    }
    result
}

/// See [`crate::sys::writes_words`].
pub fn writes_words() -> bool {
    false
}
