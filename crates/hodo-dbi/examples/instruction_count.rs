//! Counts the instructions of a program by code that is inserted before each of them.
//!
//!     cargo run --release -p hodo-dbi --example instruction_count -- PROGRAM ARGUMENTS…

use std::ffi::OsString;

use anyhow::{Context, Result};
use hodo_dbi::{Client, Inserting, Pass, Target, Word, Words};

#[derive(Default)]
struct Count(Option<Word>);

impl Pass for Count {
    fn begin(&mut self, words: &mut Words<'_>) {
        self.0 = Some(words.word());
    }

    fn insert(&mut self, at: &mut Inserting<'_>) {
        if let Some(word) = self.0 {
            at.before().count(word, 1);
        }
    }
}

#[derive(Default)]
struct Sum(u64);

impl Client for Sum {
    fn word(&mut self, _: u32, _: u32, change: u64) {
        self.0 = self.0.wrapping_add(change);
    }
}

/// Runs a program. Returns how many instructions it has executed.
pub fn count(command: &[OsString]) -> Result<u64> {
    let program = hodo_dbi::find_program(command.first().context("no program is given")?)?;
    let target = Target::program(&program, command);
    let (_, sum) = hodo_dbi::instrument(&target, vec![Box::<Count>::default()], Sum::default())?;
    Ok(sum.0)
}

fn main() -> Result<()> {
    let command: Vec<OsString> = std::env::args_os().skip(1).collect();
    eprintln!("{} instructions", count(&command)?);
    Ok(())
}
