//! System calls of AArch64 Linux.
//!
//! A write of code to `/proc/self/mem` cleans the data cache and invalidates the instruction caches of all processors
//! (`flush_ptrace_access` in the kernel's `arch/arm64/mm/flush.c`). `membarrier` interrupts those that run the process,
//! and the return from that (`eret`) makes them fetch again.

use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::sys;

pub use crate::generic::UNIT;

/// Numbers, from the kernel's `include/uapi/asm-generic/unistd.h`.
pub mod number {
    pub use crate::generic::number::*;

    pub const MEMBARRIER: usize = 283;
}

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
    let file = sys::open(c"/proc/self/auxv", sys::O_RDONLY)?;
    let mut vector = [0; 1024];
    let count = sys::read(file, &mut vector);
    // SAFETY: it was opened above.
    unsafe { sys::close(file) };
    Ok(has_mops(&vector[..count?]) == Some(false))
}

/// Returns whether an auxiliary vector reports the memory copy instructions; `None` if it does not say.
fn has_mops(vector: &[u8]) -> Option<bool> {
    const AT_HWCAP2: u64 = 26;
    const HWCAP2_MOPS: u64 = 1 << 43;
    let (words, _) = vector.as_chunks::<8>();
    let (pairs, _) = words.as_chunks::<2>();
    pairs
        .iter()
        .find(|[key, _]| u64::from_le_bytes(*key) == AT_HWCAP2)
        .map(|[_, value]| u64::from_le_bytes(*value) & HWCAP2_MOPS != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_auxiliary_vector_reports_memory_copy_instructions() {
        let vector = |pairs: &[u64]| -> std::vec::Vec<u8> {
            pairs.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        assert_eq!(has_mops(&vector(&[6, 4096, 26, 1 << 43, 0, 0])), Some(true));
        assert_eq!(
            has_mops(&vector(&[16, 1 << 43, 26, 1 << 42, 0, 0])),
            Some(false)
        );
        assert_eq!(has_mops(&vector(&[16, 1 << 43, 0, 0])), None);
        assert!(copies_by_loads_and_stores().is_ok());
        assert_eq!(writes_words(), copies_by_loads_and_stores() == Ok(true));
    }
}
