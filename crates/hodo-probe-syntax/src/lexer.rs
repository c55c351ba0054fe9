//! A position in the text of a definition, and the small pieces that can be read there.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;

use super::error::ParseError;
use super::registers::Set;

pub(super) type Result<T> = core::result::Result<T, ParseError>;

/// Returns whether a name can contain a character.
pub(super) fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns whether a text is a name: letters, digits and `_`, not beginning with a digit.
pub(super) fn is_identifier(text: &str) -> bool {
    text.chars().all(is_name) && text.starts_with(|c: char| !c.is_ascii_digit())
}

#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    pub text: &'a str,
    /// In bytes. Always at the beginning of a character or at the end of the text.
    pub at: usize,
    /// The instruction set whose registers can be named.
    pub registers: Set,
    /// Conditions and histograms may name what no argument fetches: it becomes an argument.
    pub brings: bool,
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str, registers: Set) -> Self {
        Cursor {
            text,
            at: 0,
            registers,
            brings: false,
        }
    }

    pub fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub fn is_end(&self) -> bool {
        self.at == self.text.len()
    }

    /// Returns whether a word or argument ends here.
    pub fn is_gap(&self) -> bool {
        self.peek().is_none_or(|c| c.is_ascii_whitespace())
    }

    pub fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    /// Skips `what` if it comes next. Returns whether it did.
    pub fn eat(&mut self, what: &str) -> bool {
        let eaten = self.rest().starts_with(what);
        if eaten {
            self.at += what.len();
        }
        eaten
    }

    pub fn need(&mut self, what: &str, expected: &str) -> Result<()> {
        if self.eat(what) {
            Ok(())
        } else {
            Err(self.expected(expected))
        }
    }

    /// Skips spaces. Returns whether there were any.
    pub fn spaces(&mut self) -> bool {
        !self.take(|c| c.is_ascii_whitespace()).is_empty()
    }

    /// Takes the characters from here on that fit.
    pub fn take(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|c| !fits(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// Takes letters, digits and `_`.
    pub fn word(&mut self) -> &'a str {
        self.take(is_name)
    }

    pub fn peek_word(&self) -> &'a str {
        Cursor { ..*self }.word()
    }

    /// Takes a name. `expected` says what it names, for the error.
    pub fn identifier(&mut self, expected: &str) -> Result<&'a str> {
        let start = self.at;
        let word = self.word();
        if word.is_empty() {
            return Err(self.expected(expected));
        }
        if !is_identifier(word) {
            let message = format!("a name cannot begin with the digit {}", &word[..1]);
            return Err(self.wrong(start, message));
        }
        Ok(word)
    }

    pub fn expected(&self, expected: &str) -> ParseError {
        ParseError::expected(self.text, self.at, expected)
    }

    pub fn wrong(&self, position: usize, message: impl Into<Box<str>>) -> ParseError {
        ParseError::wrong(self.text, position, message)
    }

    /// Takes an unsigned number: decimal, `0x…`, or octal with a leading 0.
    pub fn number(&mut self, expected: &str) -> Result<u64> {
        let start = self.at;
        let word = self.word();
        if !word.starts_with(|c: char| c.is_ascii_digit()) {
            self.at = start;
            return Err(self.expected(expected));
        }
        let (digits, radix, kind) = if let Some(hex) = strip_hex(word) {
            (hex, 16, "a hexadecimal number")
        } else if word.len() > 1 && word.starts_with('0') {
            (&word[1..], 8, "an octal number (it begins with 0)")
        } else {
            (word, 10, "a decimal number")
        };
        let prefix = word.len() - digits.len();
        if let Some(bad) = digits.find(|c: char| !c.is_digit(radix)) {
            let message = format!("{} is not a digit of {kind}", &digits[bad..][..1]);
            return Err(self.wrong(start + prefix + bad, message));
        }
        if digits.is_empty() {
            return Err(self.wrong(start, "there are no digits after 0x"));
        }
        u64::from_str_radix(digits, radix)
            .map_err(|_| self.wrong(start, "the number does not fit into 64 bits"))
    }

    /// Takes a number that may be negative, from -2^63 to 2^64 - 1. Those above 2^63 - 1 become negative.
    pub fn signed(&mut self, expected: &str) -> Result<i64> {
        let start = self.at;
        let negative = self.eat("-");
        let number = self.number(expected)?;
        if !negative {
            return Ok(number.cast_signed());
        }
        0i64.checked_sub_unsigned(number)
            .ok_or_else(|| self.wrong(start, "the number does not fit into 64 bits"))
    }

    /// Takes a number of `what`, from `least` to `most`.
    pub fn limited(&mut self, expected: &str, what: &str, least: u64, most: u64) -> Result<u64> {
        let start = self.at;
        let number = self.number(expected)?;
        if (least..=most).contains(&number) {
            return Ok(number);
        }
        let message = format!("{what} must be from {least} to {most}, not {number}");
        Err(self.wrong(start, message))
    }

    pub fn is_quote(&self) -> bool {
        matches!(self.peek(), Some('"' | '\''))
    }

    /// Takes a text in quotes. `\n`, `\t`, `\0` and `\xHH` have their meanings in C. Any other character after a `\`
    /// stands for itself.
    pub fn quoted(&mut self) -> Result<String> {
        let start = self.at;
        let quote = self.next();
        let mut content = String::new();
        loop {
            let at = self.at;
            match self.next() {
                None => {
                    return Err(self.wrong(start, "the text that starts here has no closing quote"));
                }
                c if c == quote => return Ok(content),
                Some('\\') => content.push(self.escaped(at)?),
                Some(c) => content.push(c),
            }
        }
    }

    /// Returns the character that an escape sequence stands for; the `\` is at `at`.
    pub fn escaped(&mut self, at: usize) -> Result<char> {
        match self.next() {
            None => Err(self.wrong(at, "nothing follows the \\")),
            Some('n') => Ok('\n'),
            Some('r') => Ok('\r'),
            Some('t') => Ok('\t'),
            Some('0') => Ok('\0'),
            Some('x') => {
                let hex = self.rest().get(..2).unwrap_or_default();
                match u8::from_str_radix(hex, 16) {
                    // A larger value would be part of a multi-byte character.
                    Ok(byte) if byte.is_ascii() && !hex.starts_with('+') => {
                        self.at += 2;
                        Ok(char::from(byte))
                    }
                    _ => Err(self.wrong(at, "\\x is followed by two hexadecimal digits, up to 7f")),
                }
            }
            Some(c) => Ok(c),
        }
    }
}

fn strip_hex(word: &str) -> Option<&str> {
    word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"))
}

/// Quotes `text` so that it is read back unchanged.
pub(super) fn quote(text: &str, quote: char) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push(quote);
    for c in text.chars() {
        match c {
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c == quote || c == '\\' => quoted.extend(['\\', c]),
            c => quoted.push(c),
        }
    }
    quoted.push(quote);
    quoted
}
