//! Recognizes what surrounds system calls.

use super::asm::SYSTEM_CALL;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_that_is_gone_is_known() {
        // musl 1.2, src/thread/x86_64/__unmapself.s, after the first system call
        assert!(ends_thread(&[0x48, 0x31, 0xFF, 0xB0, 60, 0x0F, 0x05]));
        assert!(!ends_thread(&[0x48, 0x31, 0xFF, 0xB0, 61, 0x0F, 0x05]));
        assert!(!ends_thread(&[]));
    }
}
