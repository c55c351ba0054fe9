//! Fetch arguments: `NAME=SOURCE:TYPE`.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};

use super::lexer::{Cursor, Result, is_identifier};
use super::model::{Container, FetchArg, Location, ProbeKind, Scalar, Source, Type};
use super::{MAX_ARGUMENT, MAX_ELEMENTS, MAX_NESTING, MAX_STACK};
use crate::registers::{Register, Set};

const SPECIAL: [&str; 4] = ["$retval", "$stack", "$arg1", "$comm"];
const SCALARS: [(&str, Scalar); 16] = [
    ("u8", Scalar::U(8)),
    ("u16", Scalar::U(16)),
    ("u32", Scalar::U(32)),
    ("u64", Scalar::U(64)),
    ("s8", Scalar::S(8)),
    ("s16", Scalar::S(16)),
    ("s32", Scalar::S(32)),
    ("s64", Scalar::S(64)),
    ("x8", Scalar::X(8)),
    ("x16", Scalar::X(16)),
    ("x32", Scalar::X(32)),
    ("x64", Scalar::X(64)),
    ("char", Scalar::Char),
    ("string", Scalar::String),
    ("ustring", Scalar::String),
    ("symbol", Scalar::Symbol),
];

/// Returns the name of a type.
pub(super) fn scalar_name(scalar: Scalar) -> &'static str {
    let known = SCALARS.iter().find(|(_, known)| *known == scalar);
    known.map_or("x64", |(name, _)| name)
}

/// What arguments can refer to.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub kind: ProbeKind,
    pub place: &'a Location,
    /// After the instruction at the place.
    pub after: bool,
}

/// Parses the argument that begins here; `index` is its number, counted from 0.
pub(super) fn fetch_arg(cursor: &mut Cursor, at: At, index: usize) -> Result<FetchArg> {
    let mut name = None;
    let mut ahead = *cursor;
    if !ahead.word().is_empty() && ahead.peek() == Some('=') {
        name = Some(cursor.identifier("a name")?.to_string());
        cursor.eat("=");
    }
    let start = cursor.at;
    let source = source(cursor, at, 0)?;
    let mut ty = None;
    let mut type_at = start;
    if cursor.eat(":") {
        type_at = cursor.at;
        ty = Some(type_of(cursor)?);
    }
    if !cursor.is_gap() && cursor.peek() != Some(',') {
        let expected = match ty {
            Some(Type::Scalar(_)) => "a space or [COUNT] after the type",
            Some(_) => "a space after the type",
            None => "a space or :TYPE after the argument",
        };
        return Err(cursor.expected(expected));
    }
    if let Some(ty) = ty {
        check_type(cursor, start, type_at, &source, ty)?;
    }
    let name = name.unwrap_or_else(|| default_name(&source, index));
    Ok(FetchArg { name, source, ty })
}

/// Returns the default name: `y` for `p->x[3].y`, or `arg1` for the first argument, and so on.
fn default_name(source: &Source, index: usize) -> String {
    if let Source::Variable(text) = source {
        let mut parts = text.split(['.', '>', '-', ':', '[']);
        let last = parts.rfind(|part| is_identifier(part));
        if let Some(last) = last {
            return last.to_string();
        }
    }
    format!("arg{}", index + 1)
}

fn source(cursor: &mut Cursor, at: At, nesting: usize) -> Result<Source> {
    let start = cursor.at;
    if nesting > MAX_NESTING {
        let message = format!("more than {MAX_NESTING} dereferences inside each other");
        return Err(cursor.wrong(start, message));
    }
    match cursor.peek() {
        Some('%') => {
            cursor.next();
            register(cursor, start)
        }
        Some('$') => {
            cursor.next();
            special(cursor, start, at)
        }
        Some('+' | '-') => memory(cursor, at, nesting),
        Some('@') => {
            cursor.next();
            if cursor.eat("+") {
                let offset = cursor.number("an offset in the file after @+")?;
                return Ok(Source::FileOffset(offset));
            }
            let word = cursor.peek_word();
            let address = cursor.number("an address, or + and an offset in the file, after @");
            if is_identifier(word) {
                let hint = format!("a variable is fetched by its name, {word}");
                return address.map(Source::Address).map_err(|error| error.hint(hint));
            }
            Ok(Source::Address(address?))
        }
        Some('\\') => {
            cursor.next();
            if cursor.peek() == Some('"') {
                return Ok(Source::Text(cursor.quoted()?));
            }
            let number = cursor.signed("a number or a text in \"…\" after \\")?;
            Ok(Source::Immediate(number))
        }
        Some(c) if c.is_ascii_alphabetic() || c == '_' => variable(cursor),
        _ => Err(cursor
            .expected("an argument")
            .hint("%REGISTER, $argN, $retval, $stackN, $comm, +OFFSET(ARGUMENT), @ADDRESS, \\NUMBER or a variable")),
    }
}

fn register(cursor: &mut Cursor, start: usize) -> Result<Source> {
    let name = cursor.word();
    if name.is_empty() {
        return Err(cursor.expected("the name of a register after %"));
    }
    let lower = name.to_ascii_lowercase();
    Register::named_in(cursor.registers, &lower)
        .map(Source::Register)
        .ok_or_else(|| {
            let error = cursor.wrong(start, format!("there is no register {name}"));
            if ["xmm", "ymm", "zmm"]
                .iter()
                .any(|vector| lower.starts_with(vector))
            {
                return error.hint("vector registers cannot be fetched");
            }
            let numbered = lower.trim_end_matches(|c: char| c.is_ascii_digit()) != lower;
            let others = ["ft", "fs", "fa", "f", "v"];
            if cursor.registers == Set::Riscv64
                && numbered
                && others.contains(&lower.trim_end_matches(|c: char| c.is_ascii_digit()))
            {
                return error.hint("floating-point and vector registers cannot be fetched");
            }
            if lower == "st" || lower == "st0" {
                return error.hint("registers of the x87 cannot be fetched");
            }
            error.suggest(&lower, Register::names_in(cursor.registers))
        })
}

fn special(cursor: &mut Cursor, start: usize, at: At) -> Result<Source> {
    let word = cursor.word();
    match word {
        "comm" => return Ok(Source::Comm),
        "stack" => return Ok(Source::StackPointer),
        "params" | "vars" => return Ok(Source::Variable(format!("${word}"))),
        "retval" if at.kind == ProbeKind::Return => return Ok(Source::ReturnValue),
        "retval" => {
            return Err(cursor
                .wrong(start, "$retval exists only when a function returns")
                .hint("begin with r, or write %return after the function"));
        }
        "arg" => {
            return Err(cursor
                .wrong(start, "$arg has no number")
                .hint("the first argument is $arg1"));
        }
        _ => {}
    }
    let number = |prefix: &str| {
        let digits = word.strip_prefix(prefix)?;
        (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then_some(digits)
    };
    if let Some(digits) = number("stack") {
        return match digits.parse() {
            Ok(entry @ 0..=MAX_STACK) => Ok(Source::Stack(entry)),
            _ => Err(cursor.wrong(
                start,
                format!("the last entry that can be fetched is $stack{MAX_STACK}"),
            )),
        };
    }
    if let Some(digits) = number("arg") {
        return match digits.parse() {
            Ok(0) => Err(cursor
                .wrong(start, "arguments are counted from 1")
                .hint("the first argument is $arg1")),
            // Where it is, and its type, only the file's note knows, as with variables.
            Ok(1..=MAX_ARGUMENT) if matches!(at.place, Location::Usdt { .. }) => {
                Ok(Source::Variable(format!("${word}")))
            }
            Ok(argument @ 1..=MAX_ARGUMENT) => {
                at_entry(cursor, start, at)?;
                Ok(Source::Argument(argument))
            }
            _ => Err(cursor.wrong(
                start,
                format!("the last argument that can be fetched is $arg{MAX_ARGUMENT}"),
            )),
        };
    }
    if word.is_empty() {
        return Err(cursor.expected("argN, retval, stackN or comm after $"));
    }
    let error = cursor.wrong(start, format!("there is no ${word}"));
    Err(error.suggest(&format!("${word}"), SPECIAL))
}

/// Checks the place: arguments are in the places of the calling convention only at the function's first instruction.
fn at_entry(cursor: &Cursor, start: usize, at: At) -> Result<()> {
    let hint = "name the register or the variable that has it";
    if at.kind == ProbeKind::Return {
        let message = "arguments are known at a function's entry, not when it returns";
        let hint = "fetch it by a probe at the entry";
        return Err(cursor.wrong(start, message).hint(hint));
    }
    if at.after {
        let message =
            "arguments are known before the instruction at a function's entry, not after it";
        return Err(cursor.wrong(start, message).hint(hint));
    }
    if !at.place.may_begin_function() {
        let message = "arguments are known at a function's entry, not after it";
        return Err(cursor.wrong(start, message).hint(hint));
    }
    Ok(())
}

fn memory(cursor: &mut Cursor, at: At, nesting: usize) -> Result<Source> {
    let start = cursor.at;
    let negative = cursor.next() == Some('-');
    cursor.eat("u");
    let number = cursor.number("an offset in bytes")?;
    let offset = if negative {
        0i64.checked_sub_unsigned(number)
    } else {
        i64::try_from(number).ok()
    };
    let offset = offset.ok_or_else(|| cursor.wrong(start, "the offset is too large"))?;
    cursor.need("(", "( and an address")?;
    let inner = cursor.at;
    let address = source(cursor, at, nesting + 1)?;
    if matches!(address, Source::Comm | Source::Text(_)) {
        return Err(cursor.wrong(inner, "a text is not an address"));
    }
    cursor.need(")", ") after the address")?;
    let address = Box::new(address);
    Ok(Source::Memory { offset, address })
}

fn variable(cursor: &mut Cursor) -> Result<Source> {
    let start = cursor.at;
    cursor.identifier("a variable")?;
    loop {
        let member = cursor.eat(".") || cursor.eat("->") || cursor.eat("::");
        if member {
            cursor.identifier("the name of a member")?;
        } else if cursor.eat("[") {
            cursor.number("an index")?;
            cursor.need("]", "] after the index")?;
        } else {
            break;
        }
    }
    let text = cursor.text[start..cursor.at].to_string();
    Ok(Source::Variable(text))
}

fn type_of(cursor: &mut Cursor) -> Result<Type> {
    let start = cursor.at;
    let word = cursor.word();
    if word.is_empty() {
        return Err(cursor.expected("a type").hint(types()));
    }
    let signed = word.starts_with("sb");
    let width = word[usize::from(signed)..]
        .strip_prefix('b')
        .filter(|width| {
            width.starts_with(|c: char| c.is_ascii_digit())
                || width.is_empty() && cursor.peek() == Some('@')
        });
    if width.is_some() {
        cursor.at = start + 1 + usize::from(signed);
        return bitfield(cursor, signed);
    }
    let Some(&(_, scalar)) = SCALARS.iter().find(|(name, _)| *name == word) else {
        return Err(cursor
            .wrong(start, format!("there is no type {word}"))
            .hint(types()));
    };
    if !cursor.eat("[") {
        return Ok(Type::Scalar(scalar));
    }
    let most = u64::from(MAX_ELEMENTS);
    let count = cursor.limited("the number of elements", "the number of elements", 1, most)?;
    cursor.need("]", "] after the number of elements")?;
    // The limit was MAX_ELEMENTS.
    Ok(Type::Array(scalar, count as u16))
}

fn types() -> String {
    let mut types = String::from("types are");
    for (name, _) in SCALARS {
        types.push(' ');
        types.push_str(name);
    }
    types + ", bWIDTH@OFFSET/CONTAINER for bits, TYPE[COUNT] for arrays"
}

fn bitfield(cursor: &mut Cursor, signed: bool) -> Result<Type> {
    let start = cursor.at;
    let width = cursor.number("the number of bits")?;
    cursor.need("@", "@ and the lowest bit")?;
    let offset_at = cursor.at;
    let offset = cursor.number("the lowest bit")?;
    cursor.need("/", "/ and the bits of the number that contains them")?;
    let container_at = cursor.at;
    let container = match cursor.number("8, 16, 32 or 64")? {
        8 => Container::Bits8,
        16 => Container::Bits16,
        32 => Container::Bits32,
        64 => Container::Bits64,
        other => {
            let message = format!("bits are in a number of 8, 16, 32 or 64 bits, not {other}");
            return Err(cursor.wrong(container_at, message));
        }
    };
    let bits = u64::from(container.bits());
    if !(1..=bits).contains(&width) {
        let message = format!("the number of bits must be from 1 to {bits}, not {width}");
        return Err(cursor.wrong(start, message));
    }
    if offset > bits - width {
        let message = format!("{width} bits from bit {offset} on do not fit in {bits} bits");
        return Err(cursor.wrong(offset_at, message));
    }
    // Both are at most 64.
    Ok(Type::Bitfield {
        signed,
        width: width as u8,
        offset: offset as u8,
        container,
    })
}

fn check_type(cursor: &Cursor, start: usize, at: usize, source: &Source, ty: Type) -> Result<()> {
    let text = matches!(source, Source::Comm | Source::Text(_));
    let source_text = cursor.text[start..at].trim_end_matches(':');
    match ty {
        Type::Scalar(Scalar::String) if text => Ok(()),
        _ if text => Err(cursor.wrong(at, format!("{source_text} is a text; its type is string"))),
        Type::Array(..) if !source.is_memory() => {
            let message = format!("{source_text} is one value; an array is in memory");
            let hint = format!("the array that it points to is +0({source_text})");
            Err(cursor.wrong(at, message).hint(hint))
        }
        Type::Scalar(Scalar::String) if !source.is_memory() => {
            let message = format!("{source_text} is a number; a string is in memory");
            let hint = format!("the string that it points to is +0({source_text}):string");
            Err(cursor.wrong(at, message).hint(hint))
        }
        _ => Ok(()),
    }
}
