//! Numbers in registers, in as few instructions as possible.
//!
//! One instruction puts 16 bits anywhere into zeros (`movz`) or into ones (`movn`), or is a bitmask (`orr`); with 32
//! bits, the upper half becomes 0. Each further one replaces 16 bits (`movk`).

use super::super::encode::{MOVK, MOVN, MOVZ, ORR, WIDE, bitmask, logical_immediate, move_wide};
use super::super::regs::ZERO;

/// The number of parts of 16 bits.
const PARTS: u32 = 4;

/// The instructions that put a number into a register.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moves {
    words: [u32; PARTS as usize],
    len: usize,
}

impl Moves {
    fn one(word: u32) -> Self {
        Self {
            words: [word; PARTS as usize],
            len: 1,
        }
    }

    fn and(mut self, word: u32) -> Self {
        self.words[self.len] = word;
        self.len += 1;
        self
    }

    /// The instructions.
    pub(super) fn words(&self) -> &[u32] {
        &self.words[..self.len]
    }
}

const fn part(number: u64, index: u32) -> u16 {
    (number >> (16 * index)) as u16
}

/// The number with another part.
const fn with(number: u64, index: u32, bits: u16) -> u64 {
    number & !(0xFFFF << (16 * index)) | (bits as u64) << (16 * index)
}

/// One instruction, if that is enough.
fn single(rd: u8, number: u64) -> Option<u32> {
    for index in 0..PARTS {
        let bits = part(number, index);
        if with(number, index, 0) == 0 {
            return Some(move_wide(WIDE | MOVZ, rd, bits, index));
        }
        if with(number, index, u16::MAX) == u64::MAX {
            return Some(move_wide(WIDE | MOVN, rd, !bits, index));
        }
        if with(number, index, u16::MAX) == u64::MAX >> 32 {
            return Some(move_wide(MOVN, rd, !bits, index));
        }
    }
    if let Some(mask) = bitmask(number, true) {
        return Some(logical_immediate(WIDE | ORR, rd, ZERO, mask));
    }
    bitmask(number, false).map(|mask| logical_immediate(ORR, rd, ZERO, mask))
}

/// At most this many instructions, if that is enough. The last ones replace parts of a number that takes one
/// instruction. A part that is replaced can have been anything; 0, ones, and what the other parts are suffice, because
/// bitmasks repeat.
fn at_most(rd: u8, number: u64, count: u32) -> Option<Moves> {
    if let Some(word) = single(rd, number) {
        return Some(Moves::one(word));
    }
    if count == 1 {
        return None;
    }
    for index in 0..PARTS {
        let bits = part(number, index);
        let others = (1..PARTS).map(|more| part(number, (index + more) % PARTS));
        for other in [0, u16::MAX].into_iter().chain(others) {
            if other != bits
                && let Some(moves) = at_most(rd, with(number, index, other), count - 1)
            {
                return Some(moves.and(move_wide(WIDE | MOVK, rd, bits, index)));
            }
        }
    }
    None
}

/// The instructions that put a number into a register; 31 is the zero register.
pub(super) fn moves(rd: u8, number: u64) -> Moves {
    let fewer = (1..PARTS).find_map(|count| at_most(rd, number, count));
    fewer.unwrap_or_else(|| four(rd, number))
}

/// How a number of 32 bits gets into a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halves {
    /// The lower half, into zeros.
    Lower,
    /// The upper half, into zeros; then the lower one.
    Both,
    /// In another way.
    Other,
}

impl Halves {
    /// How the assembler does it.
    #[must_use]
    pub fn of(number: u32) -> Self {
        let (low, high) = (number as u16, (number >> 16) as u16);
        let first = |bits, part| move_wide(WIDE | MOVZ, 0, bits, part);
        match *moves(0, number.into()).words() {
            [only] if only == first(low, 0) => Self::Lower,
            [upper, lower]
                if upper == first(high, 1) && lower == move_wide(WIDE | MOVK, 0, low, 0) =>
            {
                Self::Both
            }
            _ => Self::Other,
        }
    }
}

/// Four instructions, one for each part, whatever the number is.
pub(super) fn four(rd: u8, number: u64) -> Moves {
    let first = Moves::one(move_wide(WIDE | MOVZ, rd, part(number, 0), 0));
    (1..PARTS).fold(first, |moves, index| {
        moves.and(move_wide(WIDE | MOVK, rd, part(number, index), index))
    })
}
