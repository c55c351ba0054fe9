//! x86-64: the registers of C's first six arguments, and two more that functions may change.

use crate::tracepoint::notes::{Notes, probe_asm};

/// The instruction that is listed as a probe; `words` are its arguments.
#[inline(always)]
pub fn probe<N: Notes>(words: [u64; 8]) {
    // The nop of one byte is what readers know; with that of five bytes after it a jump has room.
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

/// How the notes of `sys/sdt.h` call an argument's register of a size in bytes.
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

/// Where this thread has its `hodo_keys_inside`.
#[cfg(feature = "std")]
pub fn inside() -> *mut usize {
    let word;
    // SAFETY: reads where the word is, from the table that the loader has filled in and from where threads have their
    // address.
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
