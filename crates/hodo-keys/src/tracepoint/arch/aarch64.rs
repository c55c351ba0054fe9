//! AArch64: the registers that C passes arguments in.

use crate::tracepoint::notes::{Notes, probe_asm};

/// The instruction that is listed as a probe; `words` are its arguments.
#[inline(always)]
pub fn probe<N: Notes>(words: [u64; 8]) {
    probe_asm!(
        N,
        ["nop"],
        [
            ("x0", words[0]),
            ("x1", words[1]),
            ("x2", words[2]),
            ("x3", words[3]),
            ("x4", words[4]),
            ("x5", words[5]),
            ("x6", words[6]),
            ("x7", words[7])
        ]
    );
}

/// What the notes of `sys/sdt.h` call an argument's register: compilers write its full name for all sizes.
pub const fn register(argument: usize, _: usize) -> &'static str {
    ["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"][argument]
}

/// The address of this thread's `hodo_keys_inside`.
#[cfg(feature = "std")]
pub fn inside() -> *mut usize {
    let word;
    // SAFETY: it reads where the word is, from the table that the loader has filled in and the thread pointer.
    unsafe {
        core::arch::asm!(
            "adrp {word}, :gottprel:hodo_keys_inside",
            "ldr {word}, [{word}, :gottprel_lo12:hodo_keys_inside]",
            "mrs {thread}, tpidr_el0",
            "add {word}, {word}, {thread}",
            word = out(reg) word,
            thread = out(reg) _,
            options(pure, readonly, nostack),
        );
    }
    word
}
