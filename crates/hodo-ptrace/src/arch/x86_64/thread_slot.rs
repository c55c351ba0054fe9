//! Where a thread finds its control block: by its `gs` base.

use anyhow::Result;

use super::regs::Regs;
use crate::request::request;
use crate::stopped::Stopped;

/// Bytes of hodo's page in targets. 0: none is needed.
pub const SCRATCH_PAGE: u64 = 0;

/// This many threads may make a step at once.
pub const SLOTS: u64 = u64::MAX;

impl Stopped {
    /// Where the word is that leads to its control block and may be another thread's, too: nowhere, each has a
    /// register.
    ///
    /// # Errors
    /// Never, here.
    pub fn place_of_block(self, _scratch_page: u64) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Where its control block is, as its stubs find it: the `gs` base. 0: nowhere.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn block(self) -> Result<u64> {
        Ok(self.regs()?.0.gs_base)
    }

    /// Shows its stubs where its control block is. (`_scratch_page` and `_number` are for others.)
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn set_block(self, at: u64, _scratch_page: u64, _number: u64) -> Result<()> {
        let offset = std::mem::offset_of!(libc::user_regs_struct, gs_base) as u64;
        request(libc::PTRACE_POKEUSER, self.tid(), offset, at)
    }

    /// Its process has just executed a program. The kernel has cleared its `gs` base.
    ///
    /// # Errors
    /// Never, here.
    pub fn forget_block(self) -> Result<()> {
        Ok(())
    }
}

/// What a process uses itself if one of its threads has something where its control block goes.
pub const BLOCK_IN_USE: &str =
    "uses the gs register itself (as Wine does), which hodo needs to tell threads apart";

impl Regs {
    /// If hodo's code has faulted because it does not find the control block: this cannot be.
    ///
    /// # Errors
    /// Never, here.
    pub fn find_block(&mut self, _thread: Stopped, _block: u64, _address: u64) -> Result<bool> {
        Ok(false)
    }
}
