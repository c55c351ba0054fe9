//! x86-64.

use hodo_codegen::detour::Source;
use hodo_probe_syntax::Register;
use hodo_probe_syntax::registers::x86_64::Whole;

use hodo_abi::Isa;
use hodo_probe_syntax::registers::Set;

use super::{Machine, Operand};

pub static MACHINE: Machine = Machine {
    isa: Isa::X86_64,
    names: Set::X86_64,
    registers: &[
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15",
    ],
    tells_cpu: true,
    knows_kept_flags: false,
    stack_pointer: 4,
    return_value: 0,
    // System V ABI, x86-64 supplement, 3.2.3.
    arguments: &[7, 6, 2, 1, 8, 9],
    // They are above the return address.
    stack_arguments: 1,
    // The same, A.2.1.
    call_arguments: ["rdi", "rsi", "rdx", "r10", "r8", "r9"],
    call_result: "rax",
    program_counter: "rip",
    operand,
    fetched,
};

/// An operand in the syntax of compilers: `%edi`, `$5`, `-16(%rbp)`, `total(%rip)`. None: one that cannot be fetched,
/// with an index.
fn operand(text: &str) -> Option<Operand<'_>> {
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
fn fetched(register: Register) -> Option<(Source, (u32, u32))> {
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
