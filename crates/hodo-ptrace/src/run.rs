//! Resumes stopped threads.

use anyhow::Result;

use crate::request::request;
use crate::waits;

/// Lets a stopped thread run, delivering `signal` if it is not 0.
pub fn cont(tid: i32, signal: i32) -> Result<()> {
    waits::resume(tid, || request(libc::PTRACE_CONT, tid, 0, signal as u64))
}

/// Lets a stopped thread run until it enters or leaves a system call, delivering `signal` if it is not 0.
pub fn cont_to_call(tid: i32, signal: i32) -> Result<()> {
    waits::resume(tid, || request(libc::PTRACE_SYSCALL, tid, 0, signal as u64))
}

/// Lets a stopped thread run on untraced.
pub fn detach(tid: i32) -> Result<()> {
    waits::resume(tid, || request(libc::PTRACE_DETACH, tid, 0, 0))
}
