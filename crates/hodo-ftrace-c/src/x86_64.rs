//! The data of the calling thread on x86-64.

use std::arch::asm;

/// The address of `hodo_ftrace_thread`, which `linux.rs` defines. (ELF Handling For Thread-Local Storage, section
/// 4.4.6: the initial-exec model.) No function is called, and no vector register is used.
#[inline]
pub(crate) fn thread() -> usize {
    let address;
    // SAFETY: it reads two words that do not change in a thread.
    unsafe {
        asm!(
            "mov {0}, fs:0",
            "add {0}, [rip + hodo_ftrace_thread@GOTTPOFF]",
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
            "mov {0}, [rip + hodo_ftrace_thread@GOTTPOFF]",
            out(reg) offset,
            options(pure, readonly, nostack),
        );
    }
    offset
}
