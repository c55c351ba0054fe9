//! Requests to the kernel about a thread by its number (`ptrace(2)`). Those about a stopped one are in
//! [`Stopped`](crate::Stopped).

use std::io;

use anyhow::{Context, Result};

/// The result of a ptrace request, or its error.
pub(crate) fn check(result: libc::c_long, what: &str, tid: i32) -> Result<libc::c_long> {
    if result == -1 {
        let error = io::Error::last_os_error();
        return Err(error).with_context(|| format!("{what} of thread {tid}"));
    }
    Ok(result)
}

/// One ptrace request that passes plain numbers. [`Stopped`](crate::Stopped) has methods that let a thread go on.
pub(crate) fn request(request: libc::c_uint, tid: i32, addr: u64, data: u64) -> Result<()> {
    // SAFETY: the requests used with this function take no pointers into our memory.
    let result = unsafe { libc::ptrace(request, tid, addr, data) };
    check(result, "a ptrace request", tid).map(drop)
}

/// Reads or writes a register set of a stopped thread (`PTRACE_GETREGSET`, `PTRACE_SETREGSET`), by the number of its
/// note in core files. Returns how many bytes it has.
pub(crate) fn register_set(
    request: libc::c_uint,
    tid: i32,
    kind: u64,
    bytes: &mut [u8],
) -> Result<usize> {
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: these requests read or write at most the piece of memory that the structure names, and the structure.
    let result = unsafe { libc::ptrace(request, tid, kind, &raw mut piece) };
    check(result, "the registers", tid)?;
    Ok(piece.iov_len)
}

/// Returns whether this is the error of a thread that has died in the meantime.
pub fn is_gone(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::raw_os_error)
        == Some(libc::ESRCH)
}

/// The address that a fault is about, by the signal's information.
#[must_use]
pub fn fault_address(info: &libc::siginfo_t) -> u64 {
    // SAFETY: the field is plain data, whatever the signal.
    (unsafe { info.si_addr() }) as u64
}

/// Changes the address that a fault is about.
pub fn set_fault_address(info: &mut libc::siginfo_t, address: u64) {
    let words = std::ptr::from_mut(info).cast::<u64>();
    // SAFETY: the address comes after three numbers of 32 bits and a gap, within the structure, which is aligned for
    // it.
    unsafe { words.add(2).write(address) };
}

/// Who has sent a signal that came from a process or the kernel, by its information.
#[must_use]
pub fn sender(info: &libc::siginfo_t) -> i32 {
    // SAFETY: the field is plain data, whatever the signal.
    unsafe { info.si_pid() }
}

/// Attaches without stopping; `options` are `PTRACE_O_*`.
pub fn seize(tid: i32, options: i32) -> Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, options as u64)
}

/// Option for [`Stopped::set_options`](crate::Stopped::set_options): seccomp filters do not apply (Linux 4.3, needs
/// privileges).
pub const SUSPEND_SECCOMP: i32 = 1 << 21;

/// Has a thread that runs stop at once, and one that is stopped stop again when it goes on.
pub fn interrupt(tid: i32) -> Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Sends a signal to a thread.
pub fn send(tid: i32, signal: i32) -> Result<()> {
    // SAFETY: tkill takes numbers only.
    let result = unsafe { libc::syscall(libc::SYS_tkill, tid, signal) };
    check(result, "a signal", tid).map(drop)
}
