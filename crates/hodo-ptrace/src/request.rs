//! Requests to the kernel about a stopped thread (`ptrace(2)`), one function each.

use std::io;

use anyhow::{Context, Result};

/// The result of a ptrace request, or its error.
///
/// # Errors
/// If there was one.
pub fn check(result: libc::c_long, what: &str, tid: i32) -> Result<libc::c_long> {
    if result == -1 {
        let error = io::Error::last_os_error();
        return Err(error).with_context(|| format!("{what} of thread {tid}"));
    }
    Ok(result)
}

/// One ptrace request that passes plain numbers. [`cont`](crate::cont) and its like let a thread go on.
pub fn request(request: libc::c_uint, tid: i32, addr: u64, data: u64) -> Result<()> {
    // SAFETY: the requests used with this function take no pointers into our memory.
    let result = unsafe { libc::ptrace(request, tid, addr, data) };
    check(result, "a ptrace request", tid).map(drop)
}

/// Is this the error of a thread that has died meanwhile?
pub fn is_gone(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::raw_os_error)
        == Some(libc::ESRCH)
}

/// Attaches without stopping; `options` are `PTRACE_O_*`.
pub fn seize(tid: i32, options: i32) -> Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, options as u64)
}

/// Option for [`set_options`]: seccomp filters do not apply (Linux 4.3, needs privileges).
pub const SUSPEND_SECCOMP: i32 = 1 << 21;

/// Changes the `PTRACE_O_*` options of a stopped thread.
pub fn set_options(tid: i32, options: i32) -> Result<()> {
    request(libc::PTRACE_SETOPTIONS, tid, 0, options as u64)
}

/// Has a thread that runs stop at once, and one that is stopped stop again when it goes on.
pub fn interrupt(tid: i32) -> Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// The message of a ptrace event.
pub fn event_message(tid: i32) -> Result<u64> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: PTRACE_GETEVENTMSG writes one unsigned long to `data`.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut message) };
    check(result, "the event message", tid)?;
    Ok(message)
}

/// Why a thread stopped: the signal's information.
pub fn siginfo(tid: i32) -> Result<libc::siginfo_t> {
    // SAFETY: all-zero is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: PTRACE_GETSIGINFO writes one siginfo_t to `data`.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, tid, 0, &raw mut info) };
    check(result, "the signal", tid)?;
    Ok(info)
}

/// Sends a signal to a thread.
pub fn send(tid: i32, signal: i32) -> Result<()> {
    // SAFETY: tkill takes numbers only.
    let result = unsafe { libc::syscall(libc::SYS_tkill, tid, signal) };
    check(result, "a signal", tid).map(drop)
}

/// Changes what the kernel says of the signal for which a thread is stopped.
pub fn set_siginfo(tid: i32, info: &libc::siginfo_t) -> Result<()> {
    // SAFETY: PTRACE_SETSIGINFO reads one siginfo_t from `data`.
    let result = unsafe { libc::ptrace(libc::PTRACE_SETSIGINFO, tid, 0, std::ptr::from_ref(info)) };
    check(result, "the signal", tid).map(drop)
}

/// The signals that a stopped thread blocks.
pub fn signal_mask(tid: i32) -> Result<u64> {
    let mut mask = 0u64;
    // SAFETY: PTRACE_GETSIGMASK writes 8 bytes (given as addr) to `data`.
    let result = unsafe { libc::ptrace(PTRACE_GETSIGMASK, tid, 8, &raw mut mask) };
    check(result, "the signal mask", tid)?;
    Ok(mask)
}

/// Changes the signals that a stopped thread blocks.
pub fn set_signal_mask(tid: i32, mask: u64) -> Result<()> {
    // SAFETY: PTRACE_SETSIGMASK reads 8 bytes (given as addr) from `data`.
    let result = unsafe { libc::ptrace(PTRACE_SETSIGMASK, tid, 8, &raw const mask) };
    check(result, "the signal mask", tid).map(drop)
}

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;

const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
