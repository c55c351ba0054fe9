//! Expands gathers and scatters, masked loads and stores, and repeated string instructions, and counts them and the
//! accesses of their lanes, or their rounds.
//!
//!     cargo run --release -p hodo-dbi --example expand -- PROGRAM ARGUMENTS…
//!
//! With `--uncounted` before the program, it only expands.

use std::ffi::OsString;

use anyhow::{Context, Result};
use hodo_dbi::{Client, Compute, Exit, Inserting, Pass, Replacing, Target, TooMany, Word, Words};

/// Words of threads: gathers and scatters, their accesses, and the sum of the addresses of these; masked loads and
/// stores, and their accesses; repeated instructions, and their rounds. Without counting, there are none.
struct Expand(Vec<Word>, bool);

impl Expand {
    /// In front of the access of a lane of a gather or scatter.
    fn lane(&self, at: &mut Inserting<'_>) -> Result<(), TooMany> {
        let address = at.before().reserve()?;
        at.address(address, 0);
        let mut code = at.before();
        let sum = code.reserve()?;
        code.count(self.0[1], 1);
        code.read(sum, self.0[2]);
        code.compute(Compute::Add, sum, address);
        code.write(self.0[2], sum);
        code.release(sum);
        code.release(address);
        Ok(())
    }
}

impl Pass for Expand {
    fn begin(&mut self, words: &mut Words<'_>) {
        if self.1 {
            self.0 = (0..7).map(|_| words.word()).collect();
        }
    }

    fn replace(&mut self, code: &mut Replacing<'_>) {
        // Those that come before have the same numbers afterwards.
        for number in (0..code.instructions().len()).rev() {
            let _ = code.expand_scatter_gather(number)
                || code.expand_masked_move(number)
                || code.expand_repeated(number);
        }
    }

    fn insert(&mut self, at: &mut Inserting<'_>) {
        if self.0.is_empty() {
            return;
        }
        let instruction = at.instruction();
        let is_row = instruction.is_masked_move();
        if instruction.lane().is_some() {
            match is_row {
                true => at.before().count(self.0[4], 1),
                // If there are too many scratch registers, the access is not counted.
                false => drop(self.lane(at)),
            }
        } else if instruction.is_round() {
            // One that faults is executed again.
            let round = self.0[6];
            if let Some(mut code) = at.after() {
                code.count(round, 1);
            }
        } else if instruction.is_emulated() && instruction.fetched().is_some() {
            let word = match (is_row, instruction.is_repeated()) {
                (true, _) => 3,
                (_, true) => 5,
                _ => 0,
            };
            at.before().count(self.0[word], 1);
        }
    }
}

#[derive(Debug, Default)]
struct Sums([u64; 7]);

impl Client for Sums {
    fn word(&mut self, _: u32, word: u32, change: u64) {
        let sum = &mut self.0[word as usize];
        *sum = sum.wrapping_add(change);
    }
}

fn main() -> Result<()> {
    let mut command: Vec<OsString> = std::env::args_os().skip(1).collect();
    let counts = command.first().is_none_or(|word| word != "--uncounted");
    if !counts {
        command.remove(0);
    }
    let program = hodo_dbi::find_program(command.first().context("no program is given")?)?;
    let target = Target::program(&program, &command);
    let pass = Box::new(Expand(Vec::new(), counts));
    let (ran, sums) = hodo_dbi::instrument(&target, vec![pass], Sums::default())?;
    let [all, accesses, addresses, masked, elements, repeated, rounds] = sums.0;
    eprintln!("{repeated} repeated instructions, {rounds} rounds");
    eprintln!("{masked} masked loads and stores, {elements} accesses");
    eprintln!("{all} gathers and scatters, {accesses} accesses, sum of addresses {addresses:#x}");
    std::process::exit(match ran.end {
        Some(Exit::Code(code)) => code,
        Some(Exit::Signal(signal) | Exit::Core(signal)) => 128 + signal,
        None => 0,
    })
}
