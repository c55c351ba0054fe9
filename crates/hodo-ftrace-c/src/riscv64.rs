//! The data of the calling thread on RISC-V.

use std::arch::asm;

/// The address of `hodo_ftrace_thread`, which `linux.rs` defines. (RISC-V ELF psABI, "Initial Exec".)
#[inline]
pub(crate) fn thread() -> usize {
    let address;
    // SAFETY: it reads a word that does not change in a thread.
    unsafe {
        asm!(
            "la.tls.ie {0}, hodo_ftrace_thread",
            "add {0}, {0}, tp",
            out(reg) address,
            options(pure, readonly, nostack),
        );
    }
    address
}

/// Its distance from the thread pointer, which is the same in all threads.
pub(crate) fn thread_offset() -> isize {
    let offset;
    // SAFETY: it reads a word that does not change.
    unsafe {
        asm!(
            "la.tls.ie {0}, hodo_ftrace_thread",
            out(reg) offset,
            options(pure, readonly, nostack),
        );
    }
    offset
}
