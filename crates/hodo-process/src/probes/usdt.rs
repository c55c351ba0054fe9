//! The arguments of USDT probes, as the assembler had them.

use hodo_probe::{Register, Scalar, Source, Type};

/// The arguments of a note, `-4@%edi 8@-16(%rbp) 4@$5`. None for those that cannot be fetched.
pub(super) fn arguments(text: &str) -> Vec<Option<(Source, Type)>> {
    text.split_whitespace().map(argument).collect()
}

fn argument(text: &str) -> Option<(Source, Type)> {
    let (size, operand) = text.split_once('@').unwrap_or(("8", text));
    let scalar = match size.strip_suffix('f') {
        // What is no integer is shown as its bits.
        Some(bytes) => Scalar::X(bits(bytes)?),
        None => match size.strip_prefix('-') {
            Some(bytes) => Scalar::S(bits(bytes)?),
            None => Scalar::U(bits(size)?),
        },
    };
    Some((source(operand)?, Type::Scalar(scalar)))
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

fn source(operand: &str) -> Option<Source> {
    let register = |name: &str| Register::named(name).map(Source::Register);
    if let Some(name) = operand.strip_prefix('%') {
        return register(name);
    }
    if let Some(text) = operand.strip_prefix('$') {
        return Some(Source::Immediate(number(text)?));
    }
    // `DISPLACEMENT(%BASE)`; an index, or a symbol, cannot be fetched.
    let (displacement, base) = operand.strip_suffix(')')?.split_once("(%")?;
    let offset = if displacement.is_empty() {
        0
    } else {
        number(displacement)?
    };
    Some(Source::Memory {
        offset,
        address: Box::new(register(base).filter(|_| base != "rip")?),
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
mod tests {
    use super::*;

    #[test]
    fn operands_are_registers_memory_and_numbers() {
        let text = "-4@%edi 8@-16(%rbp) 4@$-5 -4@8(%rax,%rcx,4) 8@total(%rip) 8f@(%rsp)";
        let all: Vec<Option<String>> = arguments(text)
            .into_iter()
            .map(|argument| Some(argument?.1.to_string()))
            .collect();
        let types = [
            Some("s32"),
            Some("u64"),
            Some("u32"),
            None,
            None,
            Some("x64"),
        ];
        assert_eq!(all, types.map(|ty| ty.map(str::to_owned)));
        assert_eq!(source("$-5"), Some(Source::Immediate(-5)));
        assert!(matches!(
            source("(%rsp)"),
            Some(Source::Memory { offset: 0, .. })
        ));
    }
}
