//! Recognizes what surrounds system calls.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};

use super::asm::SYSTEM_CALL;
pub use crate::syscalls::Number;

/// Whether what follows a system call is the end of a thread that has just unmapped its own stack (musl's
/// `__unmapself`): there is no stack to save anything on.
#[must_use]
pub fn ends_thread(code: &[u8]) -> bool {
    // xor rdi, rdi (or edi, edi); mov al (or eax), 60; syscall
    const CLEAR: [&[u8]; 3] = [&[0x48, 0x31, 0xFF], &[0x31, 0xFF], &[0x48, 0x33, 0xFF]];
    const EXIT: [&[u8]; 2] = [&[0xB0, 60], &[0xB8, 60, 0, 0, 0]];
    let clear = CLEAR.iter().find_map(|clear| code.strip_prefix(*clear));
    let exit = clear.and_then(|code| EXIT.iter().find_map(|exit| code.strip_prefix(*exit)));
    exit.is_some_and(|code| code.starts_with(&SYSTEM_CALL))
}

/// Whether the bytes before and after those of a system call's instruction look as if it were one.
#[must_use]
pub fn looks_like_call(before: &[u8], after: &[u8]) -> bool {
    // mov eax, number
    let number = before
        .windows(5)
        .any(|code| code[0] == 0xB8 && code[2] < 2 && code[3..] == [0, 0]);
    // mov rax, number
    let wide = before
        .windows(7)
        .any(|code| code[..3] == [0x48, 0xC7, 0xC0] && code[4] < 2 && code[5..] == [0, 0]);
    // cmp rax, -4095 or -4096
    let compared = [[0x48, 0x3D, 0x01, 0xF0], [0x48, 0x3D, 0x00, 0xF0]];
    number || wide || compared.iter().any(|code| after.starts_with(code))
}

/// What the instruction at the start of the code does to the register with the number of a system call.
#[must_use]
pub fn number(code: &[u8]) -> Number {
    let raw = Decoder::with_ip(64, code, 0, DecoderOptions::NONE).decode();
    let first = raw.op0_register();
    let is_rax = raw.op0_kind() == OpKind::Register && first.full_register() == Register::RAX;
    match raw.mnemonic() {
        Mnemonic::Mov if is_rax && first.size() >= 4 => match raw.try_immediate(1) {
            Ok(number) => Number::Loaded(number),
            Err(_) => Number::Changed,
        },
        Mnemonic::Xor if first == Register::EAX && raw.op1_register() == first => Number::Loaded(0),
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop | Mnemonic::Endbr64 => Number::Kept,
        Mnemonic::Push => Number::Kept,
        Mnemonic::Mov
        | Mnemonic::Lea
        | Mnemonic::Xor
        | Mnemonic::And
        | Mnemonic::Or
        | Mnemonic::Add
        | Mnemonic::Sub
        | Mnemonic::Movsxd
        | Mnemonic::Movzx
        | Mnemonic::Movaps
        | Mnemonic::Movups
        | Mnemonic::Movdqa
        | Mnemonic::Movdqu
        | Mnemonic::Movq
        | Mnemonic::Pxor
        | Mnemonic::Shl
        | Mnemonic::Shr
            if !is_rax =>
        {
            Number::Kept
        }
        // These are branches that look at flags.
        Mnemonic::Je | Mnemonic::Jne | Mnemonic::Js | Mnemonic::Jns => Number::Kept,
        _ => Number::Changed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_followed() {
        assert_eq!(number(&[0xB8, 1, 1, 0, 0]), Number::Loaded(257));
        assert_eq!(number(&[0x48, 0xC7, 0xC0, 15, 0, 0, 0]), Number::Loaded(15));
        assert_eq!(number(&[0x31, 0xC0]), Number::Loaded(0));
        // mov al, 1; mov rax, rdi; xor eax, edx; pop rax; xchg eax, ebx; cpuid
        for changes in [
            &[0xB0, 1][..],
            &[0x48, 0x89, 0xF8],
            &[0x31, 0xD0],
            &[0x58],
            &[0x93],
            &[0x0F, 0xA2],
            &[],
        ] {
            assert_eq!(number(changes), Number::Changed, "{changes:x?}");
        }
        // mov edi, eax; mov [rsp], rax; push rax; cmp eax, 1; add rdi, rax
        for keeps in [
            &[0x89, 0xC7][..],
            &[0x48, 0x89, 0x04, 0x24],
            &[0x50],
            &[0x83, 0xF8, 1],
            &[0x48, 0x01, 0xC7],
        ] {
            assert_eq!(number(keeps), Number::Kept, "{keeps:x?}");
        }
    }

    #[test]
    fn a_stack_that_is_gone_is_known() {
        // musl 1.2, src/thread/x86_64/__unmapself.s, after the first system call
        assert!(ends_thread(&[0x48, 0x31, 0xFF, 0xB0, 60, 0x0F, 0x05]));
        assert!(!ends_thread(&[0x48, 0x31, 0xFF, 0xB0, 61, 0x0F, 0x05]));
        assert!(!ends_thread(&[]));
    }
}
