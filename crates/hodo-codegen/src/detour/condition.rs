//! Conditions: 64-bit numbers with the operators of C.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::text::{Atom, Text};

/// A part of a fetched word: shifted down, cut, and extended to 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits {
    /// The lowest bit.
    pub shift: u8,
    /// The number of bits, from 1 to 64.
    pub width: u8,
    /// Whether the highest bit is a sign.
    pub signed: bool,
}

impl Bits {
    /// The whole word.
    pub const ALL: Self = Self {
        shift: 0,
        width: 64,
        signed: false,
    };

    /// This part of a word.
    #[must_use]
    pub fn of(self, word: u64) -> u64 {
        let top = word << (64 - u32::from(self.shift) - u32::from(self.width));
        match self.signed {
            true => (top.cast_signed() >> (64 - self.width)).cast_unsigned(),
            false => top >> (64 - self.width),
        }
    }
}

/// An operator on numbers that gives 0 or 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the operators of C")]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// An operator on numbers that gives a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the operators of C")]
pub enum Arithmetic {
    Or,
    Xor,
    And,
    Add,
    Subtract,
    Multiply,
    /// The lowest six bits count.
    ShiftLeft,
    /// The lowest six bits count; a signed number keeps its sign.
    ShiftRight,
    Divide,
    Remainder,
}

/// A condition or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// A number.
    Number(u64),
    /// A one-word value of the probe, by its index.
    Value(usize, Bits),
    /// Four bytes of the thread's control block at an offset.
    Thread(u32),
    /// The number of the processor; `true`: read with `rdpid`.
    Processor(bool),
    /// 1 for 0, and 0 for all other numbers.
    Not(Box<Test>),
    /// All bits inverted.
    Complement(Box<Test>),
    /// The negated number.
    Negate(Box<Test>),
    /// 1 if both are not 0; the second is evaluated only if the first is not 0.
    And(Box<Test>, Box<Test>),
    /// 1 if either is not 0; the second is evaluated only if the first is 0.
    Or(Box<Test>, Box<Test>),
    /// Compared, signed or not.
    Compare(Comparison, bool, Box<Test>, Box<Test>),
    /// Combined, signed or not.
    Combine(Arithmetic, bool, Box<Test>, Box<Test>),
    /// 1 if two texts are equal.
    Same(Text, Text),
    /// 1 if a whole text matches a pattern.
    Fits(Text, Vec<Atom>),
}

impl Test {
    /// Whether computing it preserves the register in which an operator's other operand waits.
    pub(crate) const fn is_leaf(&self) -> bool {
        matches!(
            self,
            Self::Number(_) | Self::Value(..) | Self::Thread(_) | Self::Processor(_)
        )
    }
}

/// The number of the word in the frame where a value is kept. `keeps`: the values that are kept, one bit for each
/// index.
pub(crate) fn kept_at(keeps: u64, value: usize) -> Option<usize> {
    if value >= 64 {
        return None;
    }
    let below = keeps & ((1 << value) - 1);
    (keeps >> value & 1 == 1).then_some(below.count_ones() as usize)
}
