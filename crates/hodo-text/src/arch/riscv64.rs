//! System calls of RISC-V Linux.

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
