//! Single steps, which the processor makes.

use anyhow::{Context, Result, bail};

use crate::request::request;
use crate::stopped::{Report, Stopped};

/// A single step: the processor does it.
#[derive(Debug, Clone, Copy)]
pub struct Step;

impl Step {
    /// The thread has stopped: brings it to where it would be if it had executed the instruction in its place. Returns
    /// whether that was not so.
    ///
    /// # Errors
    /// Never, here.
    pub fn end(self, _thread: Stopped) -> Result<bool> {
        Ok(false)
    }
}

/// Whether [`Stopped::enter_handler`] stops a thread as [`Stopped::interrupt`] does, not by a signal.
pub const HANDLERS_STOP: bool = false;

impl Stopped {
    /// Has it execute one instruction; it stops by SIGTRAP. (`_scratch_page` and `_slot` are for others.)
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn step(self, _scratch_page: u64, _slot: u64) -> Result<Step> {
        request(libc::PTRACE_SINGLESTEP, self.tid(), 0, 0).map(|()| Step)
    }

    /// Has it take a signal, and stop at the first instruction of its handler.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn enter_handler(self, signal: i32) -> Result<()> {
        request(libc::PTRACE_SINGLESTEP, self.tid(), 0, signal as u64)
    }
}

/// Has a stopped thread execute one instruction while its signals wait.
///
/// # Errors
/// If the thread is gone, or the instruction faults.
pub fn step_alone(thread: Stopped) -> Result<()> {
    let mask = thread.signal_mask()?;
    thread.set_signal_mask(u64::MAX)?;
    let mut was_asked = false;
    loop {
        thread.step(0, 0)?;
        let report = Report::of(thread.tid(), true)?.context("a step")?;
        if report.is_asked_for() {
            was_asked = true;
        } else if report.stopped().is_none() || report.signal() != libc::SIGTRAP {
            bail!(
                "a step of thread {thread} ended with status {:#x}",
                report.status()
            );
        } else {
            break;
        }
    }
    thread.set_signal_mask(mask)?;
    if was_asked {
        thread.interrupt()?;
    }
    Ok(())
}
