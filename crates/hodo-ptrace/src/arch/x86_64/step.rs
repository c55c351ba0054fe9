//! Single steps, which the processor makes.

use anyhow::Result;

use crate::request::request;

/// A single step: the processor does it.
#[derive(Debug, Clone, Copy)]
pub struct Step;

/// Has a stopped thread execute one instruction; it stops by SIGTRAP. (`_scratch_page` and `_slot` are for others.)
///
/// # Errors
/// If the thread is gone.
pub fn step(tid: i32, _scratch_page: u64, _slot: u64) -> Result<Step> {
    request(libc::PTRACE_SINGLESTEP, tid, 0, 0).map(|()| Step)
}

impl Step {
    /// The thread has stopped: brings it to where it would be if it had executed the instruction in its place. Returns
    /// whether that was not so.
    ///
    /// # Errors
    /// Never, here.
    pub fn end(self, _tid: i32) -> Result<bool> {
        Ok(false)
    }
}

/// Whether [`enter_handler`] stops a thread as [`crate::request::interrupt`] does, not by a signal.
pub const HANDLERS_STOP: bool = false;

/// Has a stopped thread take a signal, and stop at the first instruction of its handler.
///
/// # Errors
/// If the thread is gone.
pub fn enter_handler(tid: i32, signal: i32) -> Result<()> {
    request(libc::PTRACE_SINGLESTEP, tid, 0, signal as u64)
}
