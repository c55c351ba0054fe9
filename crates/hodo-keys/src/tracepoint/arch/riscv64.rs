//! RISC-V: the registers that C passes arguments in.

use crate::tracepoint::notes::{Notes, probe_asm};

/// The instruction that is listed as a probe; `words` are its arguments.
#[inline(always)]
pub fn probe<N: Notes>(words: [u64; 8]) {
    probe_asm!(
        N,
        ["nop"],
        [
            ("a0", words[0]),
            ("a1", words[1]),
            ("a2", words[2]),
            ("a3", words[3]),
            ("a4", words[4]),
            ("a5", words[5]),
            ("a6", words[6]),
            ("a7", words[7])
        ]
    );
}

/// What the notes of `sys/sdt.h` call an argument's register; its parts have no names.
pub const fn register(argument: usize, _: usize) -> &'static str {
    ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"][argument]
}

/// The address of this thread's `hodo_keys_inside`.
#[cfg(feature = "std")]
pub fn inside() -> *mut usize {
    let word;
    // SAFETY: it reads where the word is, from the table that the loader has filled in and the thread pointer.
    unsafe {
        core::arch::asm!(
            "la.tls.ie {word}, hodo_keys_inside",
            "add {word}, {word}, tp",
            word = out(reg) word,
            options(pure, readonly, nostack),
        );
    }
    word
}
