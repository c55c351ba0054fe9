//! Recognizes what surrounds system calls.

use super::asm::SYSTEM_CALL;

/// Whether what follows a system call is the end of a thread that has just unmapped its own stack (musl's
/// `__unmapself`): there is no stack to save anything on.
#[must_use]
pub fn ends_thread(code: &[u8]) -> bool {
    // li a7, 93; ecall
    const EXIT: [u8; 4] = [0x93, 0x08, 0xD0, 0x05];
    (code.strip_prefix(&EXIT)).is_some_and(|code| code.starts_with(&SYSTEM_CALL))
}

/// Whether the bytes before and after those of a system call's instruction look as if it were one. Four bytes are seldom
/// that by chance.
#[must_use]
pub fn looks_like_call(_: &[u8], _: &[u8]) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_that_is_gone_is_known() {
        // musl 1.2, src/thread/riscv64/__unmapself.s, after the first system call
        let code = [0x93, 0x08, 0xD0, 0x05, 0x73, 0, 0, 0];
        assert!(ends_thread(&code));
        assert!(!ends_thread(&[0x93, 0x08, 0xE0, 0x05, 0x73, 0, 0, 0]));
        assert!(!ends_thread(&[]));
    }
}
