//! Recognizes what surrounds system calls.

use super::asm::SYSTEM_CALL;
use super::decode::Insn;
use super::regs::A7;
pub use crate::syscalls::Number;

/// Whether what follows a system call is the end of a thread that has just unmapped its own stack (musl's
/// `__unmapself`): there is no stack to save anything on.
#[must_use]
pub fn ends_thread(code: &[u8]) -> bool {
    // li a7, 93; ecall
    const EXIT: [u8; 4] = [0x93, 0x08, 0xD0, 0x05];
    (code.strip_prefix(&EXIT)).is_some_and(|code| code.starts_with(&SYSTEM_CALL))
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
    const OP_IMM: u32 = 0x13;
    // They write no register: stores and branches.
    const STORES: [u32; 3] = [0x23, 0x27, 0x63];
    if code.is_empty() {
        return Number::Changed;
    }
    let insn = Insn::new(code, 0);
    let (opcode, to) = (insn.word & 0x7F, insn.word >> 7 & 31);
    let (function, from) = (insn.word >> 12 & 7, insn.word >> 15 & 31);
    // addi a7, zero, number
    if (opcode, to, function, from) == (OP_IMM, A7.into(), 0, 0) {
        return Number::Loaded(i64::from(insn.word.cast_signed() >> 20).cast_unsigned());
    }
    match to == u32::from(A7) && !STORES.contains(&opcode) {
        true => Number::Changed,
        false => Number::Kept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_followed() {
        // li a7, 64; c.li a7, 25
        assert_eq!(number(&[0x93, 0x08, 0x00, 0x04]), Number::Loaded(64));
        assert_eq!(number(&[0xE5, 0x48]), Number::Loaded(25));
        // mv a7, a0; addi a7, a7, 1
        assert_eq!(number(&[0xAA, 0x88]), Number::Changed);
        assert_eq!(number(&[0x93, 0x88, 0x18, 0x00]), Number::Changed);
        // mv a0, a7; sd a7, 16(sp): its field of the distance is where others have the register
        assert_eq!(number(&[0x46, 0x85]), Number::Kept);
        assert_eq!(number(&[0x23, 0x38, 0x11, 0x01]), Number::Kept);
        assert_eq!(number(&[]), Number::Changed);
    }

    #[test]
    fn a_stack_that_is_gone_is_known() {
        // musl 1.2, src/thread/riscv64/__unmapself.s, after the first system call
        let code = [0x93, 0x08, 0xD0, 0x05, 0x73, 0, 0, 0];
        assert!(ends_thread(&code));
        assert!(!ends_thread(&[0x93, 0x08, 0xE0, 0x05, 0x73, 0, 0, 0]));
        assert!(!ends_thread(&[]));
    }
}
