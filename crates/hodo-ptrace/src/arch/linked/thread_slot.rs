//! Where a thread finds its control block.
//!
//! Nothing but the stack pointer leads to memory that belongs to one thread alone and that stubs could use, but for the
//! thread pointer: a word beside what it points to, which libc keeps for others, has the address of the thread's
//! control block. Where libc has set no thread pointer yet, it points to a word of hodo's. When libc sets it, that word
//! is 0; the first stub that meets it faults, and is put right ([`Regs::find_block`]).

use anyhow::{Context, Result};
use hodo_abi::BLOCK_WORD;

use super::regs::{Regs, insn};
use crate::arch::{set_thread_pointer, thread_pointer};
use crate::stopped::Stopped;
use crate::target::TargetAddr;

/// Bytes of hodo's page in targets: words for threads without a thread pointer, and a place for a single step for each
/// thread that makes one. 0: none is needed.
pub const SCRATCH_PAGE: u64 = 4096;

/// Bytes for words at its start, and of each of the places after them.
pub(in super::super) const WORDS: u64 = 1024;

pub(in super::super) const SLOT: u64 = 16;

/// This many threads may make a step at once.
pub const SLOTS: u64 = (SCRATCH_PAGE - WORDS) / SLOT;

/// Where the word is that leads to the control block of a thread with this thread pointer.
fn block_word(pointer: u64) -> Option<u64> {
    pointer.checked_add_signed(BLOCK_WORD.into())
}

/// Whether a thread has no thread pointer but one of hodo's.
fn is_ours(pointer: u64, scratch_page: u64) -> bool {
    let word = pointer.wrapping_add_signed(BLOCK_WORD.into());
    pointer == 0 || word.wrapping_sub(scratch_page) < WORDS
}

impl Stopped {
    /// Where the word is that leads to its control block, unless it has or gets one of hodo's
    /// (`scratch_page`). It is another thread's, too, if that has the same thread pointer.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn place_of_block(self, scratch_page: u64) -> Result<Option<u64>> {
        let pointer = thread_pointer(self)?;
        Ok(block_word(pointer).filter(|_| scratch_page == 0 || !is_ours(pointer, scratch_page)))
    }

    /// Where its control block is, as its stubs find it. 0: nowhere.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn block(self) -> Result<u64> {
        match block_word(thread_pointer(self)?) {
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
        let pointer = thread_pointer(self)?;
        let word = scratch_page + number * 8 % WORDS;
        if scratch_page != 0 && is_ours(pointer, scratch_page) {
            let ours = word.wrapping_add_signed(-i64::from(BLOCK_WORD));
            set_thread_pointer(self, if at == 0 { 0 } else { ours })?;
            return self.memory()?.write(TargetAddr(word), &at.to_le_bytes());
        }
        match block_word(pointer) {
            Some(word) => self
                .memory()?
                .write(TargetAddr(word), &at.to_le_bytes())
                .context("the thread pointer is not libc's"),
            None => Ok(()),
        }
    }

    /// Its process has just executed a program: its thread pointer may still be that of what was there before, which
    /// leads nowhere.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn forget_block(self) -> Result<()> {
        set_thread_pointer(self, 0)
    }
}

impl Regs {
    /// If hodo's code has faulted at `address` because the thread's pointer is a new one, beside which nobody has
    /// written yet: writes where the control block is (`block`), and has the instruction use it. Returns whether it was
    /// that. The registers are those of `thread`.
    ///
    /// # Errors
    /// If the memory cannot be accessed.
    pub fn find_block(&mut self, thread: Stopped, block: u64, address: u64) -> Result<bool> {
        /// Control blocks, and counters below them, are reached from their addresses by this many bytes.
        const REACH: u64 = 1 << 32;
        let Some(word) = block_word(thread_pointer(thread)?) else {
            return Ok(false);
        };
        let memory = thread.memory()?;
        if address.wrapping_add(REACH) >= 2 * REACH
            || memory.read_u64(TargetAddr(word)).ok() != Some(0)
        {
            return Ok(false);
        }
        let Some(used) = insn(&memory, self.pc())?.memory() else {
            return Ok(false);
        };
        memory.write(TargetAddr(word), &block.to_le_bytes())?;
        self.set(used.base, self.get(used.base).wrapping_add(block));
        Ok(true)
    }
}
