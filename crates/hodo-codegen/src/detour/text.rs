//! Texts in conditions: comparisons and patterns. The first [`STRING`] bytes of each text count, as in events.

use alloc::vec::Vec;

use super::STRING;

/// A text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    /// This text, without a terminator.
    Fixed(Vec<u8>),
    /// A value of the probe by its index.
    Value(usize),
    /// At an offset of the thread's control block.
    Thread(u32),
}

/// A part of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Atom {
    /// Any bytes.
    Many,
    /// Any one byte.
    One,
    /// This byte.
    Byte(u8),
    /// A byte in one of these ranges, or (`true`) in none of them.
    Class(bool, Vec<(u8, u8)>),
}

impl Atom {
    /// The atoms of a pattern: `*`, `?`, `[…]`, `[!…]`; everything else stands for itself.
    #[must_use]
    pub fn pattern(text: &[u8]) -> Vec<Self> {
        let mut atoms = Vec::new();
        let mut rest = text;
        while let Some((&first, after)) = rest.split_first() {
            rest = after;
            match first {
                b'*' => {
                    if atoms.last() != Some(&Self::Many) {
                        atoms.push(Self::Many);
                    }
                }
                b'?' => atoms.push(Self::One),
                b'[' => match class(after) {
                    Some((atom, length)) => {
                        atoms.push(atom);
                        rest = &after[length..];
                    }
                    None => atoms.push(Self::Byte(b'[')),
                },
                byte => atoms.push(Self::Byte(byte)),
            }
        }
        atoms
    }

    fn is(&self, byte: u8) -> bool {
        match self {
            Self::Many => false,
            Self::One => true,
            Self::Byte(wanted) => byte == *wanted,
            Self::Class(none, ranges) => {
                ranges
                    .iter()
                    .any(|&(low, high)| (low..=high).contains(&byte))
                    != *none
            }
        }
    }

    /// Whether a whole text matches a pattern.
    #[must_use]
    pub fn fit(pattern: &[Self], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((Self::Many, rest)) => {
                (0..=text.len()).any(|skipped| Self::fit(rest, &text[skipped..]))
            }
            Some((atom, rest)) => text
                .split_first()
                .is_some_and(|(&byte, after)| atom.is(byte) && Self::fit(rest, after)),
        }
    }
}

/// The class that begins after `[`, and its length including the `]`.
fn class(text: &[u8]) -> Option<(Atom, usize)> {
    let mut at = 0;
    let none = matches!(text.first(), Some(b'!' | b'^'));
    at += usize::from(none);
    let begin = at;
    let mut ranges = Vec::new();
    loop {
        let low = *text.get(at)?;
        if low == b']' && at > begin {
            return Some((Atom::Class(none, ranges), at + 1));
        }
        match text.get(at + 1..at + 3) {
            Some(&[b'-', high]) if high != b']' => {
                ranges.push((low, high));
                at += 3;
            }
            _ => {
                ranges.push((low, low));
                at += 1;
            }
        }
    }
}

/// The part of a text that counts.
#[must_use]
pub fn cut(text: &[u8]) -> &[u8] {
    &text[..text.len().min(STRING)]
}
