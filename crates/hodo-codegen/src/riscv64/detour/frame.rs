//! The registers that a probe works with, and its part of the stack.
//!
//! There is no red zone: nothing below the stack pointer is live. A probe saves registers there, after lowering the
//! stack pointer.

use super::{Fetch, Register, Rows, Source};
use crate::detour::{Block, Deed};
use crate::reserve::scratch::{Preference, Scratch};
use crate::riscv64::masm::{Asm, Op, small};
use hodo_isa::riscv64::regs::{RA, SP};
use hodo_isa::riscv64::steps::FIXED;

/// The uses of registers, in the order in which they are needed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Regs {
    /// The address of the control block.
    pub(super) block: Register,
    /// For temporary values between two instructions.
    pub(super) x: Register,
    /// The value that is computed.
    pub(super) v: Register,
    /// The other operand; for events, the record.
    pub(super) t: Register,
    /// Where an event is written.
    pub(super) p: Register,
    /// For texts and tables.
    pub(super) a: Register,
    pub(super) b: Register,
}

/// The number of registers for counting.
pub(super) const COUNTS: usize = 2;
/// The number of registers for conditions without texts.
pub(super) const COMPUTES: usize = 4;
/// The number of registers for events without texts.
pub(super) const RECORDS: usize = 5;
/// All.
pub(super) const ALL: usize = 7;

const PREFERENCE: Preference = Preference {
    // First those that short instructions can name.
    free: &[
        10, 11, 12, 13, 14, 15, 8, 9, 16, 17, 6, 7, 28, 29, 30, 31, 5, 18, 19, 20, 21, 22, 23, 24,
        25, 26, 27, RA,
    ],
    // First those that events seldom contain.
    saved: &[6, 7, 28, 29, 30, 31, 5, 17, 16, 15, 14, 13, 12, 11, 10, RA],
};

/// The saved registers, and words for intermediate results below them.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) regs: Regs,
    scratch: Scratch,
    words: usize,
}

/// Bytes for this many words, so that the stack pointer stays a multiple of 16.
fn round(words: usize) -> i64 {
    (words.next_multiple_of(2) * 8) as i64
}

/// Maximum size in bytes of a frame that is made in one step: instructions can reach all of it.
const AT_ONCE: i64 = 496;

impl Frame {
    /// Chooses this many registers, in the order of [`Regs`]: free ones that values do not ask for, and then others,
    /// which are saved.
    pub(super) fn new(count: usize, free: u32, asked: u32, words: usize) -> Self {
        let scratch = Scratch::choose(free & !asked & !FIXED, count, None, PREFERENCE);
        let nth = |number: usize| scratch.get(number).unwrap_or_default();
        let regs = Regs {
            block: nth(0),
            x: nth(1),
            v: nth(2),
            t: nth(3),
            p: nth(4),
            a: nth(5),
            b: nth(6),
        };
        Self {
            regs,
            scratch,
            words,
        }
    }

    /// The bytes that the first step takes, and those that the second one takes.
    fn steps(&self) -> (i64, i64) {
        let all = round(self.scratch.saved().len() + self.words);
        match all <= AT_ONCE {
            true => (all, 0),
            false => (round(self.scratch.saved().len()), round(self.words)),
        }
    }

    /// How far the program's stack pointer is above ours.
    pub(super) fn depth(&self) -> i64 {
        let (first, second) = self.steps();
        first + second
    }

    /// The offset of a word from the stack pointer.
    pub(super) fn word(&self, number: usize) -> i64 {
        debug_assert!(number < self.words);
        8 * number as i64
    }

    fn kept_at(&self) -> i64 {
        match self.steps() {
            (_, 0) => 8 * self.words as i64,
            (_, second) => second,
        }
    }

    /// Where a register is saved, relative to the stack pointer.
    pub(super) fn slot(&self, register: Register) -> Option<i64> {
        let index = self.scratch.slot(register)?;
        Some(self.kept_at() + 8 * index as i64)
    }

    pub(super) fn begin(&self, asm: &mut Asm, rows: &mut Rows) {
        let (first, second) = self.steps();
        if first != 0 {
            asm.stack(-first);
            rows.lower(asm, first);
        }
        for (index, &register) in self.scratch.saved().iter().enumerate() {
            let at = self.kept_at() - second + 8 * index as i64;
            asm.store(8, register, SP, at, self.regs.x);
        }
        self.shift(asm, -second);
        rows.lower(asm, second);
    }

    /// Changes the stack pointer by the second step, while registers are saved.
    fn shift(&self, asm: &mut Asm, by: i64) {
        if small(by) {
            if by != 0 {
                asm.stack(by);
            }
            return;
        }
        asm.li(self.regs.x, by.cast_unsigned());
        asm.op(Op::ADD, SP, SP, self.regs.x);
    }

    pub(super) fn end(&self, asm: &mut Asm, rows: &mut Rows) {
        let (first, second) = self.steps();
        self.shift(asm, second);
        rows.lower(asm, -second);
        for (index, &register) in self.scratch.saved().iter().enumerate() {
            asm.ld(register, self.kept_at() - second + 8 * index as i64, SP);
        }
        if first != 0 {
            asm.stack(first);
            rows.lower(asm, -first);
        }
    }
}

/// The registers that values ask for.
pub(super) fn asked(values: &[Fetch]) -> u32 {
    let one = |value: &Fetch| match value {
        Fetch::Word(source)
        | Fetch::Load(source, ..)
        | Fetch::Text(source, _)
        | Fetch::Bytes(source, ..) => of_source(source),
        Fetch::Thread(..) | Fetch::Stack => 0,
    };
    values.iter().map(one).fold(0, core::ops::BitOr::bitor)
}

fn of_source(source: &Source) -> u32 {
    match source {
        Source::Register(register) => 1 << (register & 31),
        Source::Memory(base, _) | Source::Plus(base, _) => of_source(base),
        _ => 0,
    }
}

pub(super) fn of_block(block: &Block) -> u32 {
    let deeds = block.deeds.iter().map(|deed| match deed {
        Deed::Record(event, ..) => asked(&event.values),
        Deed::Name(source, _) => of_source(source),
        _ => 0,
    });
    deeds.fold(asked(&block.values), core::ops::BitOr::bitor)
}

/// How many registers the values of an event need.
pub(super) fn for_values(values: &[Fetch]) -> usize {
    let long = |value: &Fetch| matches!(value, Fetch::Text(..) | Fetch::Bytes(..));
    match values.iter().any(long) {
        true => ALL,
        false => RECORDS,
    }
}

/// How many registers the actions of a block need.
pub(super) fn for_deeds(deeds: &[Deed]) -> usize {
    let one = |deed: &Deed| match deed {
        Deed::Count(_) | Deed::Switch(..) | Deed::Return(_) => COMPUTES,
        Deed::Record(event, ..) => for_values(&event.values),
        Deed::Histogram(_) | Deed::Name(..) => ALL,
    };
    deeds.iter().map(one).max().unwrap_or(COMPUTES)
}

/// The number of words for the keys and sums of the largest histogram.
pub(super) fn histogram_words(deeds: &[Deed]) -> usize {
    let one = |deed: &Deed| match deed {
        Deed::Histogram(histogram) => {
            let words = histogram.words();
            words.keys + words.sums
        }
        _ => 0,
    };
    deeds.iter().map(one).max().unwrap_or(0)
}
