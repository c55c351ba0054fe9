//! Resumes stopped threads.

use anyhow::Result;

use crate::request::request;
use crate::stopped::Stopped;
use crate::waits;

impl Stopped {
    /// Lets it run, delivering `signal` if it is not 0.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn cont(self, signal: i32) -> Result<()> {
        waits::resume(self.tid(), || {
            request(libc::PTRACE_CONT, self.tid(), 0, signal as u64)
        })
    }

    /// Lets it run until it enters or leaves a system call, delivering `signal` if it is not 0.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn cont_to_call(self, signal: i32) -> Result<()> {
        waits::resume(self.tid(), || {
            request(libc::PTRACE_SYSCALL, self.tid(), 0, signal as u64)
        })
    }

    /// Lets the stop of its whole process last.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn listen(self) -> Result<()> {
        request(libc::PTRACE_LISTEN, self.tid(), 0, 0)
    }

    /// Lets it run on untraced.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn detach(self) -> Result<()> {
        let_go(self.tid())
    }
}

/// Lets a thread run on untraced, if it has stopped. At the end, whoever is traced still is let go so, whatever is
/// known of it.
///
/// # Errors
/// If the thread is gone, or runs.
pub fn let_go(tid: i32) -> Result<()> {
    waits::resume(tid, || request(libc::PTRACE_DETACH, tid, 0, 0))
}
