//! Reserves registers at random, over random instructions, and puts other values into them: the program must not
//! notice.
//!
//!     cargo run --release -p hodo-dbi --example scramble -- SEED PROGRAM ARGUMENTS…
//!
//! Ends with the program's status, or 128 plus the signal that has ended it.

use std::ffi::OsString;

use anyhow::{Context, Result};
use hodo_dbi::{
    Bytes, Client, Code, Compare, Compute, Exit, Inserting, Instruction, Kind, Pass, Ran,
    Replacing, Revising, Scratch, ScratchMask, ScratchVector, Target, TooMany, Word, Words,
};

/// Numbers that look random (Marsaglia, "Xorshift RNGs", 2003).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Another seed gives other numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }
}

/// A scratch register, what it must have, and before which more instructions it is kept.
type Kept = (Scratch, u64, u64);

/// One of the passes.
#[derive(Debug)]
pub struct Scramble {
    random: Random,
    kept: Vec<Kept>,
    /// Vectors whose elements must have a value, and masks that must have it.
    kept_vectors: Vec<(ScratchVector, u64, u64)>,
    kept_masks: Vec<(ScratchMask, u64, u64)>,
    /// Counts checks, wrong values, and what is inserted for nothing.
    words: Vec<Word>,
}

impl Scramble {
    /// Another seed inserts other code.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            kept: Vec::new(),
            kept_vectors: Vec::new(),
            kept_masks: Vec::new(),
            words: Vec::new(),
        }
    }

    /// Counts if a register does not have what it must have.
    fn check(&mut self, code: &mut Code<'_>, (scratch, value, _): Kept) -> Result<(), TooMany> {
        let expected = code.reserve()?;
        code.set(expected, value);
        let (checks, wrong) = (self.words[0], self.words[1]);
        code.when(Compare::Different, scratch, expected, |code| {
            code.count(wrong, 1);
            Ok(())
        })?;
        code.count(checks, 1);
        code.release(expected);
        Ok(())
    }

    /// A register with a value.
    fn keep(&mut self, code: &mut Code<'_>) -> Result<(), TooMany> {
        let scratch = code.reserve()?;
        let value = self.random.next();
        code.set(scratch, value ^ 0xFF);
        code.compute(Compute::Xor, scratch, 0xFF);
        let more = self.random.below(6);
        self.kept.push((scratch, value, more));
        Ok(())
    }

    /// A vector or a mask with a value, if the processor has them.
    fn keep_wide(&mut self, code: &mut Code<'_>) -> Result<(), TooMany> {
        let value = self.random.next();
        let more = self.random.below(6);
        let scratch = code.reserve()?;
        code.set(scratch, value);
        if self.random.below(3) > 0 {
            let vector = code.reserve_vector()?;
            code.fill_vector(vector, scratch);
            self.kept_vectors.push((vector, value, more));
        } else {
            let mask = code.reserve_mask()?;
            code.set_mask(mask, scratch);
            self.kept_masks.push((mask, value, more));
        }
        code.release(scratch);
        Ok(())
    }

    /// Checks vectors and masks, and releases some.
    fn check_wide(&mut self, code: &mut Code<'_>) -> Result<(), TooMany> {
        let elements = u64::from(hodo_dbi::vector_bytes() / 8);
        for (vector, value, more) in std::mem::take(&mut self.kept_vectors) {
            let found = code.reserve()?;
            code.element(found, vector, self.random.below(elements) as u8);
            self.check(code, (found, value, 0))?;
            code.release(found);
            match more.checked_sub(1) {
                Some(more) => self.kept_vectors.push((vector, value, more)),
                None => code.release_vector(vector),
            }
        }
        for (mask, value, more) in std::mem::take(&mut self.kept_masks) {
            let found = code.reserve()?;
            code.mask_bits(found, mask);
            self.check(code, (found, value, 0))?;
            code.release(found);
            match more.checked_sub(1) {
                Some(more) => self.kept_masks.push((mask, value, more)),
                None => code.release_mask(mask),
            }
        }
        Ok(())
    }

    /// Computes with vectors and masks.
    fn work_wide(&mut self, code: &mut Code<'_>) -> Result<(), TooMany> {
        let (number, value) = (self.random.next(), self.random.next());
        let scratch = code.reserve()?;
        let one = code.reserve_vector()?;
        let other = code.reserve_vector()?;
        let vectors = u64::from(hodo_dbi::vector_registers());
        code.program_vector(one, (number % vectors) as u8);
        code.copy_vector(other, one);
        code.set(scratch, value);
        code.set_element(other, 1, scratch);
        code.compute_vector(Compute::Xor, other, one);
        code.compute_vector(Compute::Add, other, other);
        // What is left is in one element.
        code.element(scratch, other, 0);
        self.check(code, (scratch, 0, 0))?;
        if hodo_dbi::has_masks() {
            let mask = code.reserve_mask()?;
            code.program_mask(mask, (number >> 32 & 7) as u8);
            code.equal_elements(mask, one, one);
            code.mask_bits(scratch, mask);
            self.check(code, (scratch, 0xFF, 0))?;
            code.set(scratch, 1);
            code.set_mask(mask, scratch);
            code.set(scratch, value);
            code.fill_vector(other, scratch);
            code.select_elements(other, mask, one);
            code.element(scratch, other, 1);
            self.check(code, (scratch, value, 0))?;
            code.release_mask(mask);
        }
        code.release_vector(other);
        code.release_vector(one);
        code.release(scratch);
        Ok(())
    }

    /// Uses what there is to use.
    fn work(&mut self, code: &mut Code<'_>) -> Result<(), TooMany> {
        let one = code.reserve()?;
        code.register(one, (self.random.next() % 16) as u8);
        let other = code.reserve()?;
        code.copy(other, one);
        code.compute(Compute::Add, other, one);
        code.compute(Compute::Or, other, 1);
        code.shift_left(other, 3);
        code.shift_right(other, 5);
        code.write(self.words[2], other);
        code.read(one, self.words[2]);
        let wrong = self.words[1];
        code.when(Compare::Different, one, other, |code| {
            code.count(wrong, 1);
            let third = code.reserve()?;
            code.set(third, 0);
            code.load(third, Bytes::Eight, third, 0);
            code.release(third);
            Ok(())
        })?;
        code.release(one);
        code.release(other);
        Ok(())
    }
}

impl Pass for Scramble {
    fn begin(&mut self, words: &mut Words<'_>) {
        self.words = (0..3).map(|_| words.word()).collect();
    }

    fn insert(&mut self, at: &mut Inserting<'_>) {
        if at.is_first() {
            self.kept.clear();
            self.kept_vectors.clear();
            self.kept_masks.clear();
        }
        // Too many registers at once: others have them.
        let _ = self.before(at);
        if self.random.below(4) == 0
            && let Some(mut code) = at.after()
        {
            let _ = self.work(&mut code);
        }
    }
}

impl Scramble {
    fn before(&mut self, at: &mut Inserting<'_>) -> Result<(), TooMany> {
        // What is set before a lane that is not active is not set.
        let may_keep = at.instruction().lane().is_none() && !at.instruction().is_round();
        let mut code = at.before();
        let kept = std::mem::take(&mut self.kept);
        for (scratch, value, more) in kept {
            self.check(&mut code, (scratch, value, more))?;
            match more.checked_sub(1) {
                Some(more) => self.kept.push((scratch, value, more)),
                None => code.release(scratch),
            }
        }
        self.check_wide(&mut code)?;
        match self.random.below(20) {
            0..=7 if may_keep => self.keep(&mut code)?,
            8 if may_keep && hodo_dbi::vector_bytes() > 0 => self.keep_wide(&mut code)?,
            9 if hodo_dbi::vector_bytes() > 0 => self.work_wide(&mut code)?,
            10..=13 => self.work(&mut code)?,
            14 => code.show_program(),
            _ => {}
        }
        let operands = at.instruction().operands().len();
        if self.random.below(3) == 0 && operands > 0 {
            let address = at.before().reserve()?;
            let operand = self.random.below(operands as u64) as usize;
            at.address(address, operand);
            let is_loaded = is_loaded(at.instruction(), operand);
            let mut code = at.before();
            code.write(self.words[2], address);
            if is_loaded {
                // If this faults, the program gets the signal as from its own instruction.
                code.compute(Compute::Xor, address, 1);
                code.compute(Compute::Xor, address, 1);
                code.load(address, Bytes::One, address, 0);
            }
            code.release(address);
        }
        Ok(())
    }
}

/// Whether an instruction loads an operand in any case: not only if a count or a mask says so.
fn is_loaded(instruction: &Instruction, operand: usize) -> bool {
    const REPEATED: [u8; 2] = [0xF2, 0xF3];
    const MASKED: u8 = 0x62;
    let operand = instruction.operands()[operand];
    let bytes = instruction.bytes();
    let is_lane = instruction.lane().is_some();
    let may_not = bytes.iter().take(4).any(|byte| REPEATED.contains(byte)) || bytes[0] == MASKED;
    operand.has_address
        && operand.kinds.first() == Some(&Kind::Load)
        && (1..=8).contains(&operand.size)
        && (is_lane || !may_not)
}

/// Puts other instructions in the place of those that simply continue, and expands gathers and scatters.
#[derive(Debug)]
pub struct Replace;

impl Pass for Replace {
    fn replace(&mut self, code: &mut Replacing<'_>) {
        const NOTHING: &[u8] = &[0x90];
        let bytes: Vec<Vec<u8>> = code
            .instructions()
            .iter()
            .map(|insn| insn.bytes().to_vec())
            .collect();
        for (number, own) in bytes.iter().enumerate().rev() {
            let is_expanded = code.expand_scatter_gather(number)
                || code.expand_masked_move(number)
                || code.expand_repeated(number);
            if !is_expanded {
                code.replace(number, &[NOTHING, own, NOTHING]);
            }
        }
    }

    fn revise(&mut self, code: &mut Revising<'_>) {
        let count = code.fragment().items().len();
        let inserted = code.insert(count / 2, |code| {
            let scratch = code.reserve()?;
            code.set(scratch, 5);
            code.compute(Compute::Subtract, scratch, 7);
            code.release(scratch);
            Ok(())
        });
        // A step may be in a part that has all registers.
        let _ = inserted;
    }
}

/// What was counted.
#[derive(Debug, Default)]
pub struct Sums {
    /// How often a register was looked at.
    pub checks: u64,
    /// How often it did not have what it must have.
    pub wrong: u64,
}

impl Client for Sums {
    fn word(&mut self, _: u32, word: u32, change: u64) {
        match word % 3 {
            0 => self.checks = self.checks.wrapping_add(change),
            1 => self.wrong = self.wrong.wrapping_add(change),
            _ => {}
        }
    }
}

/// Runs what is observed with three passes.
pub fn scramble(target: &Target<'_>, seed: u64) -> Result<(Ran, Sums)> {
    let passes: Vec<Box<dyn Pass>> = vec![
        Box::new(Scramble::new(seed)),
        Box::new(Replace),
        Box::new(Scramble::new(seed + 1)),
    ];
    hodo_dbi::instrument(target, passes, Sums::default())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let seed = arguments.next().context("no seed is given")?;
    let seed = seed.to_str().context("the seed is no number")?.parse()?;
    let command: Vec<OsString> = arguments.collect();
    let program = hodo_dbi::find_program(command.first().context("no program is given")?)?;
    let (ran, sums) = scramble(&Target::program(&program, &command), seed)?;
    eprintln!("{sums:?}");
    std::process::exit(match ran.end {
        Some(Exit::Code(code)) => code,
        Some(Exit::Signal(signal) | Exit::Core(signal)) => 128 + signal,
        None => 0,
    })
}
