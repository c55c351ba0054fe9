//! The values of events: how words become what is shown.

use std::io::Write;

use anyhow::Result;
use hodo_trace::meta::Arg;
use serde_json::Value;

/// The value of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shown {
    Number(u64),
    Signed(i64),
    Hex(u64),
    Char(u8),
    /// A Unicode character.
    Unicode(char),
    Bool(bool),
    /// The bits of an IEEE 754 number.
    Single(u32),
    Double(u64),
    Text(Vec<u8>),
    /// The beginning of a text that is longer.
    Cut(Vec<u8>),
    /// An address, with function and offset if they are known.
    Symbol(u64, Option<String>),
    List(Vec<Shown>),
    Fault,
}

impl Shown {
    /// Writes the value as ftrace does.
    pub fn text(&self, out: &mut dyn Write) -> Result<()> {
        match self {
            Self::Number(number) => write!(out, "{number}")?,
            Self::Signed(number) => write!(out, "{number}")?,
            Self::Hex(number) | Self::Symbol(number, None) => write!(out, "{number:#x}")?,
            Self::Symbol(_, Some(symbol)) => write!(out, "{symbol}")?,
            Self::Char(byte) => write!(out, "'{}'", byte.escape_ascii())?,
            Self::Unicode(letter) => write!(out, "'{}'", letter.escape_debug())?,
            Self::Bool(is) => write!(out, "{is}")?,
            Self::Single(bits) => write!(out, "{}", f32::from_bits(*bits))?,
            Self::Double(bits) => write!(out, "{}", f64::from_bits(*bits))?,
            Self::Text(bytes) => write!(out, "\"{}\"", bytes.escape_ascii())?,
            Self::Cut(bytes) => write!(out, "\"{}\"...", bytes.escape_ascii())?,
            Self::List(values) => {
                write!(out, "{{")?;
                for (index, value) in values.iter().enumerate() {
                    if index > 0 {
                        write!(out, ",")?;
                    }
                    value.text(out)?;
                }
                write!(out, "}}")?;
            }
            Self::Fault => write!(out, "(fault)")?,
        }
        Ok(())
    }

    /// Returns the value of a floating-point number. One of 32 bits becomes the number with the same decimal digits.
    pub fn float(&self) -> Option<f64> {
        match self {
            Self::Single(bits) => f32::from_bits(*bits).to_string().parse().ok(),
            Self::Double(bits) => Some(f64::from_bits(*bits)),
            _ => None,
        }
    }

    pub fn json(self) -> Value {
        match self {
            Self::Number(number) | Self::Hex(number) | Self::Symbol(number, None) => number.into(),
            Self::Signed(number) => number.into(),
            Self::Symbol(_, Some(symbol)) => symbol.into(),
            Self::Char(byte) => char::from(byte).to_string().into(),
            Self::Unicode(letter) => letter.to_string().into(),
            Self::Bool(is) => is.into(),
            Self::Single(_) | Self::Double(_) => match self.float() {
                Some(number) if number.is_finite() => number.into(),
                number => number.map(|number| number.to_string()).into(),
            },
            Self::Text(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
            Self::Cut(bytes) => marked(&bytes).into(),
            Self::List(values) => values.into_iter().map(Self::json).collect(),
            Self::Fault => Value::Null,
        }
    }
}

/// Returns the beginning of a text with a mark that there is more of it.
pub(crate) fn marked(bytes: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    // The cut may be within a character.
    while text.ends_with(char::REPLACEMENT_CHARACTER) {
        text.pop();
    }
    text.push('…');
    text
}

/// The words that a text, or the name of a thread, takes in a payload.
const TEXT_WORDS: usize = 16;
const COMM_WORDS: usize = 2;

/// Decodes the value of an argument from a payload. `symbol` names an address.
pub(crate) fn value(
    arg: &Arg,
    payload: &[u64],
    symbol: &dyn Fn(u64) -> Option<String>,
) -> Option<Shown> {
    if let Some(text) = &arg.text {
        return Some(Shown::Text(text.clone().into_bytes()));
    }
    if let Some(number) = arg.number {
        return Some(typed(number, &arg.ty, symbol));
    }
    let word = arg.word?;
    let words = payload.get(1..).and_then(|words| words.get(word..));
    let Some(words) = words.filter(|_| !is_fault(payload, arg.value)) else {
        return Some(Shown::Fault);
    };
    if arg.comm {
        return Some(text(words, COMM_WORDS));
    }
    if let Some((scalar, count)) = array(&arg.ty) {
        return Some(Shown::List(list(
            arg, payload, words, scalar, count, symbol,
        )));
    }
    if arg.ty == "string" {
        return Some(text(words, TEXT_WORDS));
    }
    let Some(&word) = words.first() else {
        return Some(Shown::Fault);
    };
    let bits = arg.bits.clamp(1, 64);
    let word = word >> arg.shift.min(63) & u64::MAX >> (64 - bits);
    Some(typed(word, &arg.ty, symbol))
}

/// Returns the bytes of an argument that has bytes, as far as they could be read.
pub(crate) fn bytes(arg: &Arg, payload: &[u64]) -> Vec<u8> {
    let words = arg.word.and_then(|word| payload.get(1..)?.get(word..));
    let Some((&length, words)) = words.and_then(<[u64]>::split_first) else {
        return Vec::new();
    };
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    bytes.take(usize::try_from(length).unwrap_or(0)).collect()
}

/// Returns whether a value could not be read. The first word has a bit for each of the first 32 values; the words after
/// it have the bits of the others.
fn is_fault(payload: &[u64], value: u32) -> bool {
    let (word, bit) = match value.checked_sub(32) {
        None => (0, value),
        Some(value) => (1 + value as usize / 64, value % 64),
    };
    payload.get(word).is_none_or(|word| word >> bit & 1 == 1)
}

fn text(words: &[u64], most: usize) -> Shown {
    let bytes = words.iter().take(most).flat_map(|w| w.to_le_bytes());
    let mut bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    // A text whose end was not recorded has more bytes, or its end comes right after them. Without the last one, it is
    // cut in any case.
    match bytes.len() == 8 * TEXT_WORDS {
        true => {
            bytes.pop();
            Shown::Cut(bytes)
        }
        false => Shown::Text(bytes),
    }
}

/// Splits `x8[4]` into the type of the elements and their number.
fn array(ty: &str) -> Option<(&str, usize)> {
    let (scalar, count) = ty.strip_suffix(']')?.split_once('[')?;
    Some((scalar, count.parse().ok()?))
}

fn list(
    arg: &Arg,
    payload: &[u64],
    words: &[u64],
    scalar: &str,
    count: usize,
    symbol: &dyn Fn(u64) -> Option<String>,
) -> Vec<Shown> {
    let count = count.min(payload.len() * 8);
    if scalar == "string" {
        let one = |index: usize| match words.get(index * TEXT_WORDS..) {
            Some(words) if !is_fault(payload, arg.value.saturating_add(index as u32)) => {
                text(words, TEXT_WORDS)
            }
            _ => Shown::Fault,
        };
        return (0..count).map(one).collect();
    }
    let bits = scalar.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let size = match scalar {
        "char" => 1,
        "symbol" => 8,
        _ => bits.parse().unwrap_or(64usize).clamp(8, 64) / 8,
    };
    let bytes = bytes(arg, payload);
    let one = |index: usize| match bytes.get(index * size..(index + 1) * size) {
        Some(element) => {
            let mut word = [0; 8];
            word[..size].copy_from_slice(element);
            typed(u64::from_le_bytes(word), scalar, symbol)
        }
        None => Shown::Fault,
    };
    (0..count).map(one).collect()
}

/// Interprets a word according to its type: `u8`, `s32`, `x64`, `char`, `symbol`, `b4@0/32`.
fn typed(word: u64, ty: &str, symbol: &dyn Fn(u64) -> Option<String>) -> Shown {
    match ty {
        "char" => return Shown::Char(word as u8),
        "symbol" => return Shown::Symbol(word, symbol(word)),
        "bool" => return Shown::Bool(word & 0xFF != 0),
        "f32" => return Shown::Single(word as u32),
        "f64" => return Shown::Double(word),
        "char32" => {
            return char::from_u32(word as u32)
                .map_or(Shown::Hex(word & 0xFFFF_FFFF), Shown::Unicode);
        }
        _ => {}
    }
    let number = |text: &str| {
        text.parse::<u32>()
            .ok()
            .filter(|bits| (1..=64).contains(bits))
    };
    let unsigned = ty.strip_prefix('s').unwrap_or(ty);
    if let Some((width, rest)) = unsigned.strip_prefix('b').and_then(|ty| ty.split_once('@'))
        && let Some(width) = number(width)
    {
        let offset = rest.split('/').next().and_then(|text| text.parse().ok());
        let bits = word >> offset.unwrap_or(0u32).min(63) & u64::MAX >> (64 - width);
        let unused = 64 - width;
        return match unsigned == ty {
            true => Shown::Number(bits),
            false => Shown::Signed((bits << unused).cast_signed() >> unused),
        };
    }
    let Some((kind, bits)) = ty.split_at_checked(1) else {
        return Shown::Hex(word);
    };
    let unused = 64 - number(bits).unwrap_or(64);
    match kind {
        "u" => Shown::Number(word << unused >> unused),
        "s" => Shown::Signed((word << unused).cast_signed() >> unused),
        _ => Shown::Hex(word << unused >> unused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_shown_by_their_types() {
        let typed = |word, ty| typed(word, ty, &|_| None);
        assert_eq!(typed(0x1FF, "u8"), Shown::Number(255));
        assert_eq!(typed(0xFF, "s8"), Shown::Signed(-1));
        assert_eq!(typed(0xF0, "b5@3/32"), Shown::Number(30));
        assert_eq!(typed(0xF0, "sb5@3/32"), Shown::Signed(-2));
        assert_eq!(typed(0x78, "sb5@3/32"), Shown::Signed(15));
        assert_eq!(typed(0xFFFF_FFFF, "s32"), Shown::Signed(-1));
        assert_eq!(typed(0xFFFF_FFFF, "s64"), Shown::Signed(0xFFFF_FFFF));
        assert_eq!(typed(0x1_0000_0001, "x32"), Shown::Hex(1));
        assert_eq!(typed(0x41, "char"), Shown::Char(b'A'));
        assert_eq!(typed(0xABCD, "b4@8/32"), Shown::Number(0xB));
        assert_eq!(typed(7, "b64@0/64"), Shown::Number(7));
        assert_eq!(typed(7, "symbol"), Shown::Symbol(7, None));
        let text = |word, ty| {
            let mut text = Vec::new();
            typed(word, ty).text(&mut text).expect("memory");
            String::from_utf8(text).expect("text")
        };
        let (half, tenth) = (0.5f64.to_bits(), u64::from(0.1f32.to_bits()));
        assert_eq!([text(half, "f64"), text(tenth, "f32")], ["0.5", "0.1"]);
        assert_eq!(typed(tenth, "f32").json(), serde_json::json!(0.1));
        assert_eq!(typed(half, "f64").json(), serde_json::json!(0.5));
        let infinite = f64::NEG_INFINITY.to_bits();
        assert_eq!(typed(infinite, "f64").json(), serde_json::json!("-inf"));
        assert_eq!(
            [text(0x101, "bool"), text(0x100, "bool")],
            ["true", "false"]
        );
        assert_eq!(typed(1, "bool").json(), serde_json::json!(true));
        assert_eq!(
            [text(0x263A, "char32"), text(10, "char32")],
            ["'☺'", "'\\n'"]
        );
        assert_eq!(text(0xD800, "char32"), "0xd800");
    }

    #[test]
    fn texts_that_are_cut_have_a_mark() {
        let shown = |words: &[u64]| {
            let payload: Vec<u64> = [0].into_iter().chain(words.iter().copied()).collect();
            let shown = value(&arg("string", 0, 0), &payload, &|_| None).expect("a value");
            let mut line = Vec::new();
            shown.text(&mut line).expect("memory");
            (String::from_utf8(line).expect("text"), shown.json())
        };
        let z = u64::from_le_bytes([b'z'; 8]);
        let mut words = [z; TEXT_WORDS];
        let cut = "z".repeat(8 * TEXT_WORDS - 1);
        assert_eq!(
            shown(&words),
            (format!("\"{cut}\"..."), format!("{cut}…").into())
        );
        // One byte less, and the text is whole.
        words[TEXT_WORDS - 1] = z >> 8;
        assert_eq!(shown(&words), (format!("\"{cut}\""), cut.into()));
        // The cut is within a character.
        assert_eq!(marked(&[b'a', 0xE2, 0x82]), "a…");
    }

    fn arg(ty: &str, word: usize, value: u32) -> Arg {
        let text = format!(
            "{{\"name\":\"a\",\"type\":\"{ty}\",\"word\":{word},\"value\":{value},\"bits\":64}}"
        );
        serde_json::from_str(&text).expect("an argument")
    }

    #[test]
    fn arrays_have_what_could_be_read() {
        let shown = |arg: &Arg, payload: &[u64]| value(arg, payload, &|_| None);
        // Only five of six bytes could be read.
        let payload = [0, 5, 0x0000_0605_0403_0201];
        let list = vec![Shown::Number(0x201), Shown::Number(0x403), Shown::Fault];
        assert_eq!(
            shown(&arg("u16[3]", 0, 0), &payload),
            Some(Shown::List(list))
        );
        // The fault of a value with a number above 31.
        assert_eq!(shown(&arg("x64", 1, 33), &[0, 2, 7]), Some(Shown::Fault));
        assert_eq!(shown(&arg("x64", 1, 32), &[0, 2, 7]), Some(Shown::Hex(7)));
        // A payload that is too short, and a wrong length.
        assert_eq!(shown(&arg("x64", 9, 0), &[0]), Some(Shown::Fault));
        assert_eq!(bytes(&arg("x8[8]", 0, 0), &[0, u64::MAX, 1]).len(), 8);
    }
}
