//! x86-64: the registers that C passes the first six arguments in, and two more that functions may change.

use crate::tracepoint::notes::{Notes, probe_asm};

/// The instruction that is listed as a probe; `words` are its arguments.
#[inline(always)]
pub fn probe<N: Notes>(words: [u64; 8]) {
    // The one-byte nop is what readers know; with the five-byte nop after it there is room for a jump.
    probe_asm!(
        N,
        ["nop", ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00"],
        [
            ("rdi", words[0]),
            ("rsi", words[1]),
            ("rdx", words[2]),
            ("rcx", words[3]),
            ("r8", words[4]),
            ("r9", words[5]),
            ("r10", words[6]),
            ("r11", words[7])
        ]
    );
}

/// What the notes of `sys/sdt.h` call an argument's register of a given size in bytes.
pub const fn register(argument: usize, size: usize) -> &'static str {
    const NAMES: [[&str; 4]; 8] = [
        ["%dil", "%di", "%edi", "%rdi"],
        ["%sil", "%si", "%esi", "%rsi"],
        ["%dl", "%dx", "%edx", "%rdx"],
        ["%cl", "%cx", "%ecx", "%rcx"],
        ["%r8b", "%r8w", "%r8d", "%r8"],
        ["%r9b", "%r9w", "%r9d", "%r9"],
        ["%r10b", "%r10w", "%r10d", "%r10"],
        ["%r11b", "%r11w", "%r11d", "%r11"],
    ];
    NAMES[argument][size.ilog2() as usize]
}

/// The address of this thread's `hodo_keys_inside`.
#[cfg(feature = "std")]
pub fn inside() -> *mut usize {
    let word;
    // SAFETY: it reads where the word is, from the table that the loader has filled in and the thread pointer.
    unsafe {
        core::arch::asm!(
            "mov {word}, qword ptr [rip + hodo_keys_inside@GOTTPOFF]",
            "add {word}, qword ptr fs:[0]",
            word = out(reg) word,
            options(pure, readonly, nostack),
        );
    }
    word
}
