//! Stopped threads, and the kernel's reports that one has stopped.
//!
//! What is asked of a thread only while it is stopped, and done to it only then, takes a [`Stopped`]. Nobody can make
//! one from a number: it comes out of a [`Report`].

use std::borrow::Borrow;
use std::fmt;
use std::io;

use anyhow::Result;

use crate::memory::{self, Memory};
use crate::request::{check, request};
use crate::target::TargetAddr;

/// What the kernel says of a traced thread or of a child: it has stopped, or it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    tid: i32,
    status: i32,
}

impl Report {
    /// The next report of any thread that the calling thread traces or has started. `None`: there is none yet, and it
    /// was not to `wait` for one.
    ///
    /// # Errors
    /// The kernel's: there is no thread, or a signal has come.
    pub fn any(wait: bool) -> io::Result<Option<Self>> {
        Self::from_kernel(-1, wait)
    }

    /// The next report of one thread.
    ///
    /// # Errors
    /// The kernel's: there is no such thread, or a signal has come.
    pub fn of(tid: i32, wait: bool) -> io::Result<Option<Self>> {
        Self::from_kernel(tid, wait)
    }

    fn from_kernel(whose: i32, wait: bool) -> io::Result<Option<Self>> {
        // Other threads of this process may have children, of which this one knows nothing. What a thread traces, and
        // what it has started, is its own.
        let flags = match wait {
            true => libc::__WALL | libc::__WNOTHREAD,
            false => libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG,
        };
        let mut status = 0;
        // SAFETY: waitpid writes one int.
        match unsafe { libc::waitpid(whose, &raw mut status, flags) } {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(None),
            tid => Ok(Some(Self { tid, status })),
        }
    }

    /// Of which thread.
    pub fn tid(self) -> i32 {
        self.tid
    }

    /// The status, as `waitpid` has it.
    pub fn status(self) -> i32 {
        self.status
    }

    /// What it has exited with, if it has.
    pub fn exit_code(self) -> Option<i32> {
        libc::WIFEXITED(self.status).then(|| libc::WEXITSTATUS(self.status))
    }

    /// Whether a signal has ended it.
    pub fn is_killed(self) -> bool {
        libc::WIFSIGNALED(self.status)
    }

    /// The thread, if it has stopped.
    pub fn stopped(self) -> Option<Stopped> {
        libc::WIFSTOPPED(self.status).then_some(Stopped { tid: self.tid })
    }

    /// For which event it has stopped (`PTRACE_EVENT_*`). 0: for a signal, or at a system call.
    pub fn event(self) -> i32 {
        self.status >> 16
    }

    /// The signal that goes with the stop.
    pub fn signal(self) -> i32 {
        libc::WSTOPSIG(self.status)
    }

    /// Whether it has stopped because it was asked to, or with its whole process.
    pub fn is_asked_for(self) -> bool {
        self.stopped().is_some() && self.event() == libc::PTRACE_EVENT_STOP
    }

    /// Whether the whole process has stopped (SIGSTOP, ^Z), not this thread alone. Of a stop that is asked for.
    pub fn is_group_stop(self) -> bool {
        self.is_asked_for() && self.signal() != libc::SIGTRAP
    }
}

/// A thread that has stopped for hodo.
///
/// It can be copied, for a tracer keeps sets of them, and what lets the thread run cannot take the copies back. Whoever
/// has let it run has to wait for its next [`Report`]; the kernel refuses what is done with an old copy, with the error
/// of a thread that [is gone](crate::is_gone), as it does when the thread was killed.
///
/// It is ordered, hashed and looked up as its number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stopped {
    tid: i32,
}

impl Borrow<i32> for Stopped {
    fn borrow(&self) -> &i32 {
        &self.tid
    }
}

impl From<Stopped> for i32 {
    fn from(thread: Stopped) -> Self {
        thread.tid
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.tid, f)
    }
}

impl Stopped {
    /// Reads as much of `buffer` as the thread itself can read (`process_vm_readv(2)`). Returns how many bytes that is.
    pub fn load(self, at: TargetAddr, buffer: &mut [u8]) -> usize {
        memory::load(self.tid(), at, buffer)
    }

    /// Writes as much of `bytes` as the thread itself can write (`process_vm_writev(2)`). Returns how many that is.
    pub fn store(self, at: TargetAddr, bytes: &[u8]) -> usize {
        memory::store(self.tid(), at, bytes)
    }

    /// Its number.
    pub fn tid(self) -> i32 {
        self.tid
    }

    /// Its process's memory.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn memory(self) -> Result<Memory> {
        Memory::open(self.tid)
    }

    /// Has it stop again as soon as it goes on.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn interrupt(self) -> Result<()> {
        crate::request::interrupt(self.tid)
    }

    /// Changes its `PTRACE_O_*` options.
    ///
    /// # Errors
    /// If the thread is gone, or the kernel refuses.
    pub fn set_options(self, options: i32) -> Result<()> {
        request(libc::PTRACE_SETOPTIONS, self.tid, 0, options as u64)
    }

    /// The message of the event that it has stopped for.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn event_message(self) -> Result<u64> {
        let mut message: libc::c_ulong = 0;
        // SAFETY: PTRACE_GETEVENTMSG writes one unsigned long to `data`.
        let result =
            unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, self.tid, 0, &raw mut message) };
        check(result, "the event message", self.tid)?;
        Ok(message)
    }

    /// Why it has stopped: the signal's information.
    ///
    /// # Errors
    /// If the thread is gone, or no signal has stopped it.
    pub fn siginfo(self) -> Result<libc::siginfo_t> {
        // SAFETY: all-zero is a valid siginfo_t.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: PTRACE_GETSIGINFO writes one siginfo_t to `data`.
        let result = unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, self.tid, 0, &raw mut info) };
        check(result, "the signal", self.tid)?;
        Ok(info)
    }

    /// Changes what the kernel says of the signal for which it has stopped.
    ///
    /// # Errors
    /// If the thread is gone, or no signal has stopped it.
    pub fn set_siginfo(self, info: &libc::siginfo_t) -> Result<()> {
        let info = std::ptr::from_ref(info);
        // SAFETY: PTRACE_SETSIGINFO reads one siginfo_t from `data`.
        let result = unsafe { libc::ptrace(libc::PTRACE_SETSIGINFO, self.tid, 0, info) };
        check(result, "the signal", self.tid).map(drop)
    }

    /// The signals that it blocks.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn signal_mask(self) -> Result<u64> {
        let mut mask = 0u64;
        // SAFETY: PTRACE_GETSIGMASK writes 8 bytes (given as addr) to `data`.
        let result = unsafe { libc::ptrace(PTRACE_GETSIGMASK, self.tid, 8, &raw mut mask) };
        check(result, "the signal mask", self.tid)?;
        Ok(mask)
    }

    /// Changes the signals that it blocks.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn set_signal_mask(self, mask: u64) -> Result<()> {
        // SAFETY: PTRACE_SETSIGMASK reads 8 bytes (given as addr) from `data`.
        let result = unsafe { libc::ptrace(PTRACE_SETSIGMASK, self.tid, 8, &raw const mask) };
        check(result, "the signal mask", self.tid).map(drop)
    }
}

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;

const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
