//! Blocks are made again from the code that they were made from.

use std::fmt;

use super::narrow::decode;
use iced_x86::InstructionInfoFactory;

use super::facts::{Facts, facts};
use super::records::analyze;
use crate::block::Block;
use crate::translate::{Analyzed, BlockInsn};

/// Makes blocks again.
pub(crate) struct Rebuilder(InstructionInfoFactory);

impl Default for Rebuilder {
    fn default() -> Self {
        Self(InstructionInfoFactory::new())
    }
}

impl fmt::Debug for Rebuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rebuilder")
    }
}

impl Rebuilder {
    /// The block with this number of instructions, whose executions are counted. `read` reads the program's code: the
    /// rest of a part of it.
    pub(crate) fn block<'c>(
        &mut self,
        id: u32,
        start: u64,
        insns: usize,
        read: impl Fn(u64) -> Option<&'c [u8]>,
    ) -> Option<Block> {
        let mut code: Vec<BlockInsn<'_, Facts>> = Vec::with_capacity(insns);
        let mut pc = start;
        for _ in 0..insns {
            let rest = read(pc)?;
            let mut bytes = [0; 16];
            match rest.first_chunk() {
                Some(whole) => bytes = *whole,
                None => bytes[..rest.len()].copy_from_slice(rest),
            }
            let insn = decode(&bytes).filter(|insn| usize::from(insn.len) <= rest.len());
            let own = rest.get(..insn.map_or(1, |insn| usize::from(insn.len)))?;
            code.push((pc, own, facts(&mut self.0, pc, own).into()));
            pc += own.len() as u64;
        }
        // What it says of flags matters only where it is translated.
        Some(analyze(id, &code, Vec::new(), Analyzed::Counts, true))
    }
}
