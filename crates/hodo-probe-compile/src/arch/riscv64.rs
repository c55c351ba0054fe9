//! RISC-V of 64 bits.

use hodo_codegen::detour::Source;
use hodo_isa::riscv64::regs::{NAMES, SP};
use hodo_probe_syntax::Register;

use hodo_abi::Isa;
use hodo_probe_syntax::registers::Set;

use super::{Machine, Operand};

pub static MACHINE: Machine = Machine {
    isa: Isa::Riscv64,
    names: Set::Riscv64,
    registers: &NAMES,
    tells_cpu: false,
    knows_kept_flags: false,
    stack_pointer: SP,
    return_value: 10,
    arguments: &[10, 11, 12, 13, 14, 15, 16, 17],
    stack_arguments: 0,
    call_arguments: ["a0", "a1", "a2", "a3", "a4", "a5"],
    call_result: "a0",
    program_counter: "pc",
    operand,
    fetched,
};

/// Where a register's value comes from, and which bits of it count: the lowest, and how many. None: it is another
/// processor's.
fn fetched(register: Register) -> Option<(Source, (u32, u32))> {
    use hodo_probe_syntax::registers::riscv64::Register::{Pc, X};
    let source = match register {
        Register::Riscv64(Pc) => Source::Here,
        Register::Riscv64(X(number)) => Source::Register(number),
        _ => return None,
    };
    Some((source, (0, 64)))
}

/// An operand in the syntax of compilers: `a5`, `-20(s0)`, `5`.
fn operand(text: &str) -> Option<Operand<'_>> {
    if let Some((displacement, base)) = text.strip_suffix(')').and_then(|text| text.split_once('('))
    {
        return Some(Operand::Memory(displacement, base));
    }
    match text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
        true => Some(Operand::Number(text)),
        false => Some(Operand::Register(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_registers_memory_and_numbers() {
        assert_eq!(operand("a5"), Some(Operand::Register("a5")));
        assert_eq!(operand("-20(s0)"), Some(Operand::Memory("-20", "s0")));
        assert_eq!(operand("(sp)"), Some(Operand::Memory("", "sp")));
        assert_eq!(operand("-5"), Some(Operand::Number("-5")));
        assert_eq!(operand("5"), Some(Operand::Number("5")));
    }
}
