//! The registers that a probe works with, and its part of the stack.
//!
//! There is no red zone: nothing below the stack pointer is live. A probe saves registers there, after lowering the
//! stack pointer.

use super::{Fetch, Register, Rows, Source};
use crate::detour::{Block, Deed};
use crate::linked::asm::Assembler;
use crate::reserve::scratch::Scratch;

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

/// The number of registers for conditions without texts.
pub(super) const COMPUTES: usize = 4;
/// The number of registers for events without texts.
pub(super) const RECORDS: usize = 5;
/// All.
pub(super) const ALL: usize = 7;

/// The saved registers, and words for intermediate results below them.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) regs: Regs,
    scratch: Scratch,
    words: usize,
    /// The flags are saved, too.
    flags: bool,
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
    pub(super) fn new<A: Assembler>(count: usize, free: u32, asked: u32, words: usize) -> Self {
        let free = free & !asked & !A::FIXED;
        let scratch = Scratch::choose(free, count, None, A::PREFERENCE);
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
            flags: false,
        }
    }

    /// The same, which saves the flags if there are any and something needs them.
    pub(super) fn with_flags<A: Assembler>(mut self, needed: bool) -> Self {
        self.flags = A::FLAGS && needed;
        self
    }

    /// The bytes that the first step takes, and those that the second one takes.
    fn steps(&self) -> (i64, i64) {
        let saved = self.scratch.saved().len() + usize::from(self.flags);
        let all = round(saved + self.words);
        match all <= AT_ONCE {
            true => (all, 0),
            false => (round(saved), round(self.words)),
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

    /// Where the saved registers and then the flags are, after the first step.
    fn places(&self) -> (impl Iterator<Item = (Register, i64)>, i64) {
        let from = self.kept_at() - self.steps().1;
        let saved = self.scratch.saved();
        let registers = saved.iter().copied().zip((from..).step_by(8));
        (registers, from + 8 * saved.len() as i64)
    }

    pub(super) fn begin<A: Assembler>(&self, asm: &mut A, rows: &mut Rows) {
        let (first, second) = self.steps();
        let x = self.regs.x;
        if first != 0 {
            asm.stack(-first, x);
            rows.lower(asm, first);
        }
        let (registers, flags) = self.places();
        for (register, at) in registers {
            asm.store(8, register, A::STACK, at, x);
        }
        if self.flags {
            asm.keep_flags(x, flags);
        }
        if second != 0 {
            asm.stack(-second, x);
        }
        rows.lower(asm, second);
    }

    pub(super) fn end<A: Assembler>(&self, asm: &mut A, rows: &mut Rows) {
        let (first, second) = self.steps();
        let x = self.regs.x;
        if second != 0 {
            asm.stack(second, x);
        }
        rows.lower(asm, -second);
        let (registers, flags) = self.places();
        if self.flags {
            asm.restore_flags(x, flags);
        }
        for (register, at) in registers {
            asm.load(8, register, A::STACK, at);
        }
        if first != 0 {
            asm.stack(first, x);
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

/// Whether the code of a block compares registers.
pub(super) fn block_compares(block: &Block) -> bool {
    let counts = |deed: &Deed| matches!(deed, Deed::Count(_) | Deed::Return(_));
    block.condition.is_some() || !block.deeds.iter().all(counts)
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
