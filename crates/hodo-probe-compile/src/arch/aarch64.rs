//! AArch64.

use hodo_abi::Isa;
use hodo_codegen::detour::Source;
use hodo_isa::aarch64::regs::SP;
use hodo_probe_syntax::Register;
use hodo_probe_syntax::registers::Set;

use super::{Machine, Operand};

pub static MACHINE: Machine = Machine {
    isa: Isa::Aarch64,
    names: Set::Aarch64,
    registers: &[
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13",
        "x14", "x15", "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26",
        "x27", "x28", "x29", "x30", "sp",
    ],
    // `tpidrro_el0` is not the number of a processor under Linux.
    tells_cpu: false,
    knows_kept_flags: true,
    stack_pointer: SP,
    return_value: 0,
    // Procedure Call Standard for the Arm 64-bit Architecture, 6.8.2.
    arguments: &[0, 1, 2, 3, 4, 5, 6, 7],
    stack_arguments: 0,
    call_arguments: ["x0", "x1", "x2", "x3", "x4", "x5"],
    call_result: "x0",
    program_counter: "pc",
    operand,
    fetched,
};

fn fetched(register: Register) -> Option<(Source, (u32, u32))> {
    use hodo_probe_syntax::registers::aarch64::Register::{Pc, Sp, X};
    let source = match register {
        Register::Aarch64(Pc) => Source::Here,
        Register::Aarch64(Sp) => Source::Register(SP),
        Register::Aarch64(X(number)) => Source::Register(number),
        _ => return None,
    };
    Some((source, (0, 64)))
}

/// An operand in the syntax of compilers: `x0`, `[sp, 12]`, `[x19]`, `5`. Those of 32 bits, `w0`, are parts of the
/// registers. None: one that cannot be fetched, with an index.
fn operand(text: &str) -> Option<Operand<'_>> {
    if let Some(inside) = text.strip_prefix('[') {
        let inside = inside.strip_suffix(']')?;
        let (base, displacement) = inside.split_once(',').unwrap_or((inside, ""));
        let displacement = displacement.trim().trim_start_matches('#');
        let is_number = displacement.is_empty()
            || displacement.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        return is_number.then_some(Operand::Memory(displacement, base));
    }
    match text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
        true => Some(Operand::Number(text)),
        false => Some(Operand::Register(whole(text))),
    }
}

/// The name of the 64-bit register of which `w0` … `w30` are parts.
fn whole(name: &str) -> &str {
    let number = name.strip_prefix('w').and_then(|n| n.parse::<usize>().ok());
    let register = number.filter(|&number| number < 31);
    register.map_or(name, |number| MACHINE.registers[number])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_registers_memory_and_numbers() {
        assert_eq!(operand("x5"), Some(Operand::Register("x5")));
        assert_eq!(operand("w5"), Some(Operand::Register("x5")));
        assert_eq!(operand("[sp, 12]"), Some(Operand::Memory("12", "sp")));
        assert_eq!(operand("[x19]"), Some(Operand::Memory("", "x19")));
        assert_eq!(operand("[x0, x1]"), None);
        assert_eq!(operand("-5"), Some(Operand::Number("-5")));
    }
}
