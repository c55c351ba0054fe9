//! Text elements as strace writes them: strings, addresses, flags.

use std::fmt::Write;

use super::names::Names;

/// Formats an address.
pub(super) fn address(value: u64) -> String {
    match value {
        0 => "NULL".to_owned(),
        value => format!("{value:#x}"),
    }
}

/// Appends a number.
pub(super) fn put_number(text: &mut String, mut value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    text.extend(digits[at..].iter().map(|&digit| char::from(digit)));
}

/// Appends a number that may be negative.
pub(super) fn put_signed(text: &mut String, value: i64) {
    if value < 0 {
        text.push('-');
    }
    put_number(text, value.unsigned_abs());
}

/// Appends a number in hex. Zero is `0x0`.
pub(super) fn put_hex(text: &mut String, value: u64) {
    text.push_str("0x");
    let digits = (64 - value.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        let digit = (value >> (4 * digit) & 15) as u8;
        text.push(char::from(match digit {
            0..10 => b'0' + digit,
            _ => b'a' + digit - 10,
        }));
    }
}

/// Formats a number in hex. Zero is `0`.
pub(super) fn hex(value: u64) -> String {
    match value {
        0 => "0".to_owned(),
        value => format!("{value:#x}"),
    }
}

/// Formats a number in octal, as modes are written: with a leading zero and at least three digits.
pub(super) fn octal(value: u64) -> String {
    format!("{:0>3}", format!("0{value:o}"))
}

/// Quotes at most `most` bytes of a string. `more`: the string continues after `bytes`.
pub(super) fn quoted(bytes: &[u8], most: usize, more: bool) -> String {
    let mut text = String::with_capacity(bytes.len().min(most) + 5);
    put_quoted(&mut text, bytes, most, more);
    text
}

/// Appends the same text.
pub(super) fn put_quoted(text: &mut String, bytes: &[u8], most: usize, more: bool) {
    let cut = &bytes[..bytes.len().min(most)];
    text.push('"');
    for (at, &byte) in cut.iter().enumerate() {
        match byte {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b'\t' => text.push_str("\\t"),
            b'\n' => text.push_str("\\n"),
            0x0B => text.push_str("\\v"),
            0x0C => text.push_str("\\f"),
            b'\r' => text.push_str("\\r"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                let digit = matches!(cut.get(at + 1), Some(b'0'..=b'7'));
                text.push('\\');
                for shift in [6, 3, 0] {
                    // Leading zeros are needed only before a character that is an octal digit.
                    if digit || shift == 0 || byte >> shift != 0 {
                        text.push(char::from(b'0' + (byte >> shift & 7)));
                    }
                }
            }
        }
    }
    text.push('"');
    if more || cut.len() < bytes.len() {
        text.push_str("...");
    }
}

/// Quotes bytes in hex.
pub(super) fn quoted_hex(bytes: &[u8], most: usize, more: bool) -> String {
    let mut text = String::from('"');
    for byte in bytes.iter().take(most) {
        let _ = write!(text, "\\x{byte:02x}");
    }
    text.push('"');
    if more || bytes.len() > most {
        text.push_str("...");
    }
    text
}

/// Formats the bits of a number by name, separated by `|`. Bits without names are in hex. Returns `None` if the number
/// is 0.
fn named_bits(value: u64, names: &Names) -> Option<String> {
    let mut rest = value;
    let mut text = String::new();
    for &(bits, name) in names {
        if bits != 0 && rest & bits == bits {
            rest &= !bits;
            if !text.is_empty() {
                text.push('|');
            }
            text.push_str(name);
        }
    }
    if rest != 0 {
        if !text.is_empty() {
            text.push('|');
        }
        let _ = write!(text, "{rest:#x}");
    }
    (!text.is_empty()).then_some(text)
}

/// Formats flags; `0` if none is set. If none of the bits has a name, a hint follows.
pub(super) fn flags(value: u64, names: &Names, what: &str) -> String {
    match named_bits(value, names) {
        None => "0".to_owned(),
        Some(text) if text.starts_with("0x") => format!("{text} /* {what} */"),
        Some(text) => text,
    }
}

/// Formats flags after a name, for numbers whose zero has its own name.
pub(super) fn with_flags(first: &str, value: u64, names: &Names) -> String {
    match named_bits(value, names) {
        None => first.to_owned(),
        Some(text) => format!("{first}|{text}"),
    }
}

/// Returns the name of a number.
pub(super) fn name(value: u64, names: &Names) -> Option<&'static str> {
    names
        .iter()
        .find(|(number, _)| *number == value)
        .map(|found| found.1)
}

/// Formats a number by name, or as a number with a hint.
pub(super) fn one(value: u64, names: &Names, what: &str) -> String {
    match name(value, names) {
        Some(name) => name.to_owned(),
        None => format!("{} /* {what} */", hex(value)),
    }
}

/// Formats a set of signals, in which bit 0 is signal 1.
pub(super) fn signals(set: u64) -> String {
    let inverted = set.count_ones() >= 64 * 2 / 3;
    let shown = if inverted { !set } else { set };
    let names = (0..64).filter(|bit| shown >> bit & 1 == 1);
    let names: Vec<String> = names.map(|bit| super::errors::signal(bit + 1)).collect();
    format!("{}[{}]", if inverted { "~" } else { "" }, names.join(" "))
}

/// Returns the little-endian number at an offset, or 0 if it lies outside.
pub(super) fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(part) = bytes.get(at..at + size) {
        word[..size].copy_from_slice(part);
    }
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syscalls::names::{ACCESS, PROT};

    #[test]
    fn strings_are_escaped() {
        assert_eq!(
            quoted(b"a\tb\"\\\n\x01\x012\x80\0", 32, false),
            r#""a\tb\"\\\n\1\0012\200\0""#
        );
        assert_eq!(quoted(b"\x008\x007", 32, false), r#""\08\0007""#);
        assert_eq!(quoted(&[b'x'; 40], 3, false), "\"xxx\"...");
        assert_eq!(quoted(b"x", 32, true), "\"x\"...");
    }

    #[test]
    fn numbers_are_appended() {
        let mut text = String::new();
        for value in [0, 9, 10, -1, i64::MAX, i64::MIN] {
            put_signed(&mut text, value);
            text.push(' ');
        }
        put_number(&mut text, u64::MAX);
        for value in [0, 15, 16, 0x7fff_0123_4567_89ab, u64::MAX] {
            text.push(' ');
            put_hex(&mut text, value);
        }
        assert_eq!(
            text,
            format!(
                "0 9 10 -1 {} {} {} 0x0 0xf 0x10 0x7fff0123456789ab 0xffffffffffffffff",
                i64::MAX,
                i64::MIN,
                u64::MAX
            )
        );
    }

    #[test]
    fn flags_have_names() {
        assert_eq!(flags(3, PROT, "PROT_???"), "PROT_READ|PROT_WRITE");
        assert_eq!(flags(0x101, PROT, "PROT_???"), "PROT_READ|0x100");
        assert_eq!(flags(0x100, PROT, "PROT_???"), "0x100 /* PROT_??? */");
        assert_eq!(flags(0, ACCESS, "?_OK"), "0");
        assert_eq!(
            [octal(0o644), octal(0), octal(0o2), octal(0o1777)],
            ["0644", "000", "002", "01777"]
        );
    }

    #[test]
    fn large_sets_of_signals_are_inverted() {
        assert_eq!(signals(0x10200), "[USR1 CHLD]");
        assert_eq!(signals(!0), "~[]");
        assert_eq!(signals(!(1 << 8 | 1 << 31)), "~[KILL RTMIN]");
    }
}
