//! System calls of AArch64 Linux.
//!
//! A write of code to `/proc/self/mem` cleans the data cache and invalidates the instruction caches of all processors
//! (`flush_ptrace_access` in the kernel's `arch/arm64/mm/flush.c`). `membarrier` interrupts those that run the process,
//! and the return from that (`eret`) makes them fetch again.

use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::{auxv, sys};

pub use crate::generic::UNIT;

/// Numbers, from the kernel's `include/uapi/asm-generic/unistd.h`.
pub mod number {
    pub use crate::generic::number::*;

    pub const MEMBARRIER: usize = 283;
}

/// Two functions: one returns 1, the other 2. `mov x0, #1; ret`
pub const RETURNS: [&[u8]; 2] = [
    &[0x20, 0, 0x80, 0xD2, 0xC0, 0x03, 0x5F, 0xD6],
    &[0x40, 0, 0x80, 0xD2, 0xC0, 0x03, 0x5F, 0xD6],
];

/// Makes a system call.
///
/// # Safety
/// As the system call.
pub unsafe fn call(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel keeps all registers but x0; the caller answers for what the call does.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] => result,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x5") args[5],
            options(nostack),
        );
    }
    result
}

/// See [`crate::sys::writes_words`]. False if the processor has instructions that copy memory, because Linux uses them
/// from version 6.13 on. All versions that use them also report them.
pub fn writes_words() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    if ANSWER.load(Ordering::Relaxed) == UNKNOWN {
        let answer = if copies_by_loads_and_stores().unwrap_or(false) {
            YES
        } else {
            NO
        };
        ANSWER.store(answer, Ordering::Relaxed);
    }
    ANSWER.load(Ordering::Relaxed) == YES
}

fn copies_by_loads_and_stores() -> Result<bool, sys::Errno> {
    const HWCAP2_MOPS: u64 = 1 << 43;
    let features = auxv::own(auxv::AT_HWCAP2)?;
    Ok(features.is_some_and(|features| features & HWCAP2_MOPS == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_auxiliary_vector_says_how_memory_is_copied() {
        assert!(copies_by_loads_and_stores().is_ok());
        assert_eq!(writes_words(), copies_by_loads_and_stores() == Ok(true));
    }
}
