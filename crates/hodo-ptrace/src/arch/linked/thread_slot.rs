//! Where a thread finds its control block.
//!
//! Nothing but the stack pointer leads to memory that belongs to one thread alone and that stubs could use, but for the
//! thread pointer: the word below what it points to, which libc keeps for others, has the address of the thread's
//! control block. Where libc has set no thread pointer yet, it points to a word of hodo's. When libc sets it, that word
//! is 0; the first stub that meets it faults, and is put right ([`Regs::find_block`]).

use anyhow::{Context, Result};
use hodo_isa::riscv64::regs::TP;

use super::regs::{Regs, insn};
use crate::memory::Memory;
use crate::stopped::Stopped;
use crate::target::TargetAddr;

/// Bytes of hodo's page in targets: words for threads without a thread pointer, and a place for a single step for each
/// thread that makes one. 0: none is needed.
pub const SCRATCH_PAGE: u64 = 4096;

/// Bytes for words at its start, and of each of the places after them.
pub(super) const WORDS: u64 = 1024;

pub(super) const SLOT: u64 = 16;

/// This many threads may make a step at once.
pub const SLOTS: u64 = (SCRATCH_PAGE - WORDS) / SLOT;

/// Where the word is that leads to a thread's control block.
fn block_word(regs: &Regs) -> Option<u64> {
    regs.get(TP).checked_sub(8)
}

/// Whether a thread has no thread pointer but one of hodo's.
fn is_ours(regs: &Regs, scratch_page: u64) -> bool {
    let tp = regs.get(TP);
    tp == 0 || tp.wrapping_sub(scratch_page + 8) < WORDS
}

impl Stopped {
    /// Where the word is that leads to its control block, unless it has or gets one of hodo's
    /// (`scratch_page`). It is another thread's, too, if that has the same thread pointer.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn place_of_block(self, scratch_page: u64) -> Result<Option<u64>> {
        let regs = self.regs()?;
        Ok(block_word(&regs).filter(|_| scratch_page == 0 || !is_ours(&regs, scratch_page)))
    }

    /// Where its control block is, as its stubs find it. 0: nowhere.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn block(self) -> Result<u64> {
        let regs = self.regs()?;
        match block_word(&regs) {
            // What cannot be read was not made by a libc.
            Some(at) => Ok(self.memory()?.read_u64(TargetAddr(at)).unwrap_or(0)),
            None => Ok(0),
        }
    }

    /// Shows its stubs where its control block is. `scratch_page`: hodo's page in its process;
    /// `number`: of the control block.
    ///
    /// # Errors
    /// If the thread is gone, or its thread pointer leads nowhere.
    pub fn set_block(self, at: u64, scratch_page: u64, number: u64) -> Result<()> {
        let mut regs = self.regs()?;
        let word = scratch_page + number * 8 % WORDS;
        if scratch_page != 0 && is_ours(&regs, scratch_page) {
            regs.set(TP, if at == 0 { 0 } else { word + 8 });
            self.set_regs(&regs)?;
            return self.memory()?.write(TargetAddr(word), &at.to_le_bytes());
        }
        match block_word(&regs) {
            Some(word) => self
                .memory()?
                .write(TargetAddr(word), &at.to_le_bytes())
                .context("the thread pointer is not libc's"),
            None => Ok(()),
        }
    }

    /// Its process has just executed a program: its thread pointer is still that of what was there before, which leads
    /// nowhere.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn forget_block(self) -> Result<()> {
        let mut regs = self.regs()?;
        regs.set(TP, 0);
        self.set_regs(&regs)
    }
}

/// What a process uses itself if one of its threads has something where its control block goes.
pub const BLOCK_IN_USE: &str = "uses the word below its thread pointer itself (as musl does), which hodo needs to tell threads \
     apart";

impl Regs {
    /// If hodo's code has faulted at `address` because the thread's pointer is a new one, below which nobody has
    /// written yet: writes where the control block is (`block`), and has the instruction use it. Returns whether it was
    /// that.
    ///
    /// # Errors
    /// If the memory cannot be accessed.
    pub fn find_block(&mut self, block: u64, address: u64, memory: &Memory) -> Result<bool> {
        /// Control blocks, and counters below them, are reached from their addresses by this many bytes.
        const REACH: u64 = 1 << 32;
        let Some(word) = block_word(self) else {
            return Ok(false);
        };
        if address.wrapping_add(REACH) >= 2 * REACH
            || memory.read_u64(TargetAddr(word)).ok() != Some(0)
        {
            return Ok(false);
        }
        let Some(used) = insn(memory, self.pc())?.memory() else {
            return Ok(false);
        };
        memory.write(TargetAddr(word), &block.to_le_bytes())?;
        self.set(used.base, self.get(used.base).wrapping_add(block));
        Ok(true)
    }
}
