//! Recognizes what surrounds system calls.

use super::asm::SYSTEM_CALL;
use super::decode::{Insn, Kind};
use super::regs::general;
pub use crate::syscalls::Number;

/// The register with the number of a system call.
const NUMBER: u8 = 8;

/// Whether what follows a system call is the end of a thread that has just unmapped its own stack (musl's
/// `__unmapself`): there is no stack to save anything on.
#[must_use]
pub fn ends_thread(code: &[u8]) -> bool {
    // mov x8, #93 (or w8); svc #0
    const EXIT: u64 = 93;
    let exits = number(code) == Number::Loaded(EXIT);
    exits
        && code
            .get(4..)
            .is_some_and(|code| code.starts_with(&SYSTEM_CALL))
}

/// Whether the bytes before and after those of a system call's instruction look as if it were one. Four bytes are
/// seldom that by chance.
#[must_use]
pub fn looks_like_call(_: &[u8], _: &[u8]) -> bool {
    true
}

/// What the instruction at the start of the code does to the register with the number of a system call.
#[must_use]
pub fn number(code: &[u8]) -> Number {
    let insn = Insn::new(code, 0);
    if insn.kind == Kind::Invalid {
        return Number::Changed;
    }
    if insn.effects().changes & general(NUMBER) == 0 {
        return Number::Kept;
    }
    let limit = if insn.bit(31) {
        u64::MAX
    } else {
        u64::MAX >> 32
    };
    let bits = u64::from(insn.field(5, 16)) << (16 * insn.field(21, 2));
    match (insn.kind, insn.field(29, 2)) {
        // movn, movz
        (Kind::MoveWide, 0) => Number::Loaded(!bits & limit),
        (Kind::MoveWide, 2) => Number::Loaded(bits),
        // orr x8, xzr, xzr
        (Kind::LogicalRegister, 1) if insn.word & 0x7FFF_FFE0 == 0x2A1F_03E0 => Number::Loaded(0),
        _ => Number::Changed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_followed() {
        let of = |word: u32| number(&word.to_le_bytes());
        // mov x8, #64; mov w8, #93; mov x8, #-1; mov w8, #-1; mov x8, xzr
        assert_eq!(of(0xD280_0808), Number::Loaded(64));
        assert_eq!(of(0x5280_0BA8), Number::Loaded(93));
        assert_eq!(of(0x9280_0008), Number::Loaded(u64::MAX));
        assert_eq!(of(0x1280_0008), Number::Loaded(0xFFFF_FFFF));
        assert_eq!(of(0xAA1F_03E8), Number::Loaded(0));
        // movk x8, #1; mov x8, x0; add x8, x8, #1; ldr x8, [x0], ldp x0, x8, [sp]; ldr x0, [x8], #8; bl .
        for changes in [
            0xF280_0028,
            0xAA00_03E8,
            0x9100_0508,
            0xF940_0008,
            0xA940_23E0,
            0xF840_8500,
        ] {
            assert_eq!(of(changes), Number::Changed, "{changes:08x}");
        }
        // mov x0, x8; str x8, [sp, #16]; cbz x8, .; cmp x8, #1; mov x7, #1; nop
        for keeps in [
            0xAA08_03E0,
            0xF900_0BE8,
            0xB400_0008,
            0xF100_051F,
            0xD280_0027,
            0xD503_201F,
        ] {
            assert_eq!(of(keeps), Number::Kept, "{keeps:08x}");
        }
        assert_eq!(number(&[]), Number::Changed);
        assert_eq!(number(&[0x1F, 0x20, 0x03]), Number::Changed);
    }

    #[test]
    fn a_stack_that_is_gone_is_known() {
        // musl 1.2, src/thread/aarch64/__unmapself.s, after the first system call
        let code = [0xA8, 0x0B, 0x80, 0xD2, 0x01, 0, 0, 0xD4];
        assert!(ends_thread(&code));
        assert!(!ends_thread(&code[..4]));
        assert!(!ends_thread(&[0xC8, 0x0B, 0x80, 0xD2, 0x01, 0, 0, 0xD4]));
        assert!(!ends_thread(&[]));
    }
}
