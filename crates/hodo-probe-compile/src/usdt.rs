//! The arguments of USDT probes, as the assembler wrote them.

use hodo_probe_syntax::{Register, Scalar, Source, Type};

use crate::arch::{Machine, Operand};

/// How far the data of a symbol is from the probed instruction, if the name means only one.
pub(super) type Distance<'a> = dyn Fn(&str) -> Option<i64> + 'a;

/// The arguments of a note, pieces such as `-4@OPERAND`: the bytes, with a sign if the number has one. None for those
/// that cannot be fetched.
pub(super) fn arguments(
    text: &str,
    machine: &Machine,
    distance: &Distance<'_>,
) -> Vec<Option<(Source, Type)>> {
    // AArch64's operands have spaces in brackets: `[sp, 12]`.
    let mut inside = false;
    let arguments = text.split(move |c: char| {
        inside = c == '[' || inside && c != ']';
        !inside && c.is_ascii_whitespace()
    });
    let arguments = arguments.filter(|text| !text.is_empty());
    arguments
        .map(|text| argument(text, machine, distance))
        .collect()
}

/// The argument that `$arg1` (`arg1` with the prefix `arg`) means, counted from 0.
pub(super) fn number_of(name: &str, prefix: &str) -> Option<usize> {
    let number: usize = name.strip_prefix(prefix)?.parse().ok()?;
    number.checked_sub(1)
}

fn argument(text: &str, machine: &Machine, distance: &Distance<'_>) -> Option<(Source, Type)> {
    let (size, operand) = text.split_once('@').unwrap_or(("8", text));
    let scalar = match size.strip_suffix('f') {
        // What is no integer is shown as its bits.
        Some(bytes) => Scalar::X(bits(bytes)?),
        None => match size.strip_prefix('-') {
            Some(bytes) => Scalar::S(bits(bytes)?),
            None => Scalar::U(bits(size)?),
        },
    };
    Some((source(operand, machine, distance)?, Type::Scalar(scalar)))
}

fn bits(bytes: &str) -> Option<u8> {
    match bytes {
        "1" => Some(8),
        "2" => Some(16),
        "4" => Some(32),
        "8" => Some(64),
        _ => None,
    }
}

fn source(operand: &str, machine: &Machine, distance: &Distance<'_>) -> Option<Source> {
    let register = |name: &str| Register::named_in(machine.names, name).map(Source::Register);
    let (displacement, base) = match (machine.operand)(operand)? {
        Operand::Register(name) => return register(name),
        Operand::Number(text) => return Some(Source::Immediate(number(text)?)),
        Operand::Memory(displacement, base) => (displacement, base),
    };
    // An offset, or `SYMBOL+OFFSET`.
    let offset = if base == machine.program_counter {
        let sign = displacement.find(['+', '-']).unwrap_or(displacement.len());
        let (symbol, more) = displacement.split_at(sign);
        let more = match more.strip_prefix('+').unwrap_or(more) {
            "" => 0,
            more => number(more)?,
        };
        distance(symbol)?.checked_add(more)?
    } else if displacement.is_empty() {
        0
    } else {
        number(displacement)?
    };
    Some(Source::Memory {
        offset,
        address: Box::new(register(base)?),
    })
}

fn number(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let number = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?.cast_signed(),
        None => digits.parse::<u64>().ok()?.cast_signed(),
    };
    Some(if negative {
        number.wrapping_neg()
    } else {
        number
    })
}

#[cfg(test)]
mod other_machines {
    use super::*;
    use crate::arch;
    use hodo_abi::Isa;

    #[test]
    fn operands_may_have_spaces_in_brackets() {
        let machine = arch::of(Isa::Aarch64);
        let all = arguments("-4@[sp, 12] 8@x1  4@w2 8@[x3, x4] -4@5", machine, &|_| None);
        let register = |name| Register::named_in(machine.names, name).map(Source::Register);
        let sources: Vec<Option<Source>> = (all.into_iter())
            .map(|argument| argument.map(|(source, _)| source))
            .collect();
        let address = Box::new(register("sp").expect("a register"));
        let expected = [
            Some(Source::Memory {
                offset: 12,
                address,
            }),
            register("x1"),
            register("x2"),
            None,
            Some(Source::Immediate(5)),
        ];
        assert_eq!(sources, expected);
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::arch::NATIVE;

    #[test]
    fn operands_are_registers_memory_and_numbers() {
        let text = "-4@%edi 8@-16(%rbp) 4@$-5 -4@8(%rax,%rcx,4) 8@other(%rip) 8@8(%rip) 8f@(%rsp)";
        let known = |name: &str| (name == "total").then_some(-64);
        let all: Vec<Option<String>> = arguments(text, NATIVE, &known)
            .into_iter()
            .map(|argument| Some(argument?.1.to_string()))
            .collect();
        let types = [
            Some("s32"),
            Some("u64"),
            Some("u32"),
            None,
            None,
            None,
            Some("x64"),
        ];
        assert_eq!(all, types.map(|ty| ty.map(str::to_owned)));
        let source = |text| source(text, NATIVE, &known);
        let rip = Register::named("rip").expect("a register");
        for (text, offset) in [
            ("total(%rip)", -64),
            ("total+8(%rip)", -56),
            ("total-0x10(%rip)", -80),
        ] {
            let address = Box::new(Source::Register(rip));
            assert_eq!(source(text), Some(Source::Memory { offset, address }));
        }
        assert_eq!(source("total+x(%rip)"), None);
        assert_eq!(source("$-5"), Some(Source::Immediate(-5)));
        assert!(matches!(
            source("(%rsp)"),
            Some(Source::Memory { offset: 0, .. })
        ));
    }
}
