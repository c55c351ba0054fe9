//! Counts the instructions of a program by operation.
//!
//!     cargo run --release -p hodo-mem --example opcode_mix -- PROGRAM ARGUMENTS…

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;

use anyhow::{Context, Result};
use hodo_dbi::{Block, Client, Observe, Target};

#[derive(Default)]
struct Mix(HashMap<String, u64>);

impl Client for Mix {
    fn counted(&mut self, _: u32, block: &Arc<Block>, upto: usize, times: u64) {
        for insn in 0..upto {
            let name = hodo_dbi::mnemonic(block.bytes(insn));
            *self.0.entry(name).or_default() += times;
        }
    }
}

/// Runs a program. Returns how often it has executed each operation.
pub fn mix(command: &[OsString]) -> Result<HashMap<String, u64>> {
    let program = hodo_dbi::find_program(command.first().context("no program is given")?)?;
    let observed = hodo_dbi::observe(
        &Target::program(&program, command),
        Observe::Counts,
        Mix::default(),
    )?;
    Ok(observed.1.0)
}

fn main() -> Result<()> {
    let command: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut mix: Vec<(String, u64)> = mix(&command)?.into_iter().collect();
    mix.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let all: u64 = mix.iter().map(|(_, count)| count).sum();
    eprintln!("{all:>14} instructions");
    for (name, count) in mix {
        eprintln!("{count:>14} {name}");
    }
    Ok(())
}
