//! Memory of hodo that becomes accessible as it is needed, so that wild accesses of the program fault.

use anyhow::{Context, Result, bail};
use hodo_abi::Span;
use hodo_ptrace::{Stopped, TargetAddr};

use super::{PAGE, Process};
use crate::written::open;

impl Process {
    /// Has threads access so many bytes more of a region.
    ///
    /// # Errors
    /// If the thread is gone, or there is no memory.
    pub(crate) fn extend(&mut self, thread: Stopped, region: usize, bytes: usize) -> Result<()> {
        let Some(more) = self.cache[region].grow(bytes as u64) else {
            return Ok(());
        };
        let calls = self.calls_of(thread)?;
        let opened = open(&calls, more);
        calls.end()?;
        opened
    }

    /// Gives a thread a block. Returns where it is.
    ///
    /// # Errors
    /// If the thread is gone, or there are too many threads.
    pub(crate) fn give_block(&mut self, thread: Stopped) -> Result<u64> {
        let at = match self.blocks.take_free() {
            Some(at) => at,
            None if self.recorder.is_some() => self.map_block(thread)?,
            None => {
                let Some(at) = self.blocks.take_new() else {
                    bail!("the program has more than {} threads", self.blocks.most());
                };
                if at.is_multiple_of(PAGE) {
                    self.open_blocks(thread, at)?;
                }
                at
            }
        };
        thread.set_block(at, 0, 0)?;
        self.say_protected(at)?;
        self.blocks.give(at);
        Ok(at)
    }

    /// Has threads access a page of blocks.
    fn open_blocks(&self, thread: Stopped, page: u64) -> Result<()> {
        let calls = self.calls_of(thread)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let is_open = calls.mprotect(TargetAddr(page), PAGE, protection)?;
        calls.end()?;
        match is_open {
            true => Ok(()),
            false => bail!("memory for a thread was refused"),
        }
    }

    /// Maps memory for a thread that is observed.
    fn map_block(&mut self, thread: Stopped) -> Result<u64> {
        let Some(recorder) = &self.recorder else {
            bail!("nothing is observed");
        };
        let layout = recorder.borrow().layout();
        let calls = self.calls_of(thread)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let wanted = TargetAddr(self.blocks.next());
        let got = calls.mmap(wanted, layout.size(), libc::PROT_NONE, flags, None)?;
        self.blocks.skip(layout.size());
        let at = got.addr().context("memory for a thread's records")?;
        self.mapped.push(Span::at(at.0, layout.size()));
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let is_open = calls.mprotect(at, layout.accessible(), protection)?;
        calls.end()?;
        if !is_open {
            bail!("memory for a thread's records was refused");
        }
        Ok(at.0)
    }

    /// The thread that had this block has ended.
    pub(crate) fn take_block(&mut self, at: u64) {
        self.blocks.end(at);
    }
}
