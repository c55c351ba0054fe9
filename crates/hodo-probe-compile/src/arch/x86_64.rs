//! x86-64.

use hodo_codegen::detour::Source;
use hodo_probe_syntax::Register;
use hodo_probe_syntax::registers::x86_64::Whole;

use super::Operand;

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
