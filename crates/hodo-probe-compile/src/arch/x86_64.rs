//! x86-64.

use hodo_codegen::detour::Source;
use hodo_probe_syntax::Register;
use hodo_probe_syntax::registers::x86_64::Whole;
use hodo_ptrace::arch::SYSTEM_CALL;

use super::Operand;

/// Is what follows a system call the end of a thread, which has just unmapped its own stack (musl's `__unmapself`)?
/// There is no stack to save anything on, then.
pub fn ends_thread(code: &[u8]) -> bool {
    // xor rdi, rdi (or edi, edi); mov al (or eax), 60; syscall
    const CLEAR: [&[u8]; 3] = [&[0x48, 0x31, 0xFF], &[0x31, 0xFF], &[0x48, 0x33, 0xFF]];
    const EXIT: [&[u8]; 2] = [&[0xB0, 60], &[0xB8, 60, 0, 0, 0]];
    let clear = CLEAR.iter().find_map(|clear| code.strip_prefix(*clear));
    let exit = clear.and_then(|code| EXIT.iter().find_map(|exit| code.strip_prefix(*exit)));
    exit.is_some_and(|code| code.starts_with(&SYSTEM_CALL))
}

/// Do the bytes before and after those of a system call's instruction look as if it were one?
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

/// The general registers by the processor's numbers.
pub const REGISTERS: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// Whether programs can tell which processor they run on, without the kernel.
pub const TELLS_CPU: bool = true;

/// The stack pointer, by number.
pub const STACK_POINTER: u8 = 4;

/// Where functions return a value, by number.
pub const RETURN_VALUE: u8 = 0;

/// Registers of the first arguments (System V ABI, x86-64 supplement, 3.2.3).
pub const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];

/// The word of the stack with the first argument that is not in a register, when a function is entered: above the
/// return address.
pub const STACK_ARGUMENTS: usize = 1;

/// The address of the instruction, as a register.
pub const PROGRAM_COUNTER: &str = "rip";

/// An operand in the syntax of compilers: `%edi`, `$5`, `-16(%rbp)`, `total(%rip)`. None: one that cannot be fetched,
/// with an index.
pub fn operand(text: &str) -> Option<Operand<'_>> {
    if let Some(name) = text.strip_prefix('%') {
        return Some(Operand::Register(name));
    }
    if let Some(number) = text.strip_prefix('$') {
        return Some(Operand::Number(number));
    }
    let (displacement, base) = text.strip_suffix(')')?.split_once("(%")?;
    Some(Operand::Memory(displacement, base))
}

/// Where a register's value comes from, and which bits of it count: the lowest, and how many. None: it is another
/// processor's.
pub fn fetched(register: Register) -> Option<(Source, (u32, u32))> {
    let Register::X86_64(register) = register else {
        return None;
    };
    let source = match register.whole {
        Whole::Rip => Source::Here,
        Whole::Flags => Source::Flags,
        Whole::Cs => Source::Segment(1),
        Whole::Ss => Source::Segment(2),
        whole => Source::Register(whole as u8),
    };
    Some((source, (register.part.shift(), register.part.bits())))
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
