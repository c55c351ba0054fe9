//! The data of the calling thread on AArch64.

use std::arch::asm;

/// The address of `hodo_ftrace_thread`, which `linux.rs` defines.
#[inline]
pub(crate) fn thread() -> usize {
    let pointer: usize;
    // SAFETY: it reads a register that does not change in a thread.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags));
    }
    pointer.wrapping_add_signed(thread_offset())
}

/// Its distance from the thread pointer, which is the same in all threads. (Arm, "ELF for the Arm 64-bit Architecture",
/// initial exec.)
#[inline]
pub(crate) fn thread_offset() -> isize {
    let offset;
    // SAFETY: it reads a word that does not change.
    unsafe {
        asm!(
            "adrp {0}, :gottprel:hodo_ftrace_thread",
            "ldr {0}, [{0}, :gottprel_lo12:hodo_ftrace_thread]",
            out(reg) offset,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    offset
}
