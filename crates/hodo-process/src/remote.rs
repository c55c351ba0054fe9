//! Doing things in a stopped thread of another process: memory, registers, system calls.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail};

use crate::machine::{CALL_AND_HOME, Kept, broken_off};
pub use crate::machine::{Regs, regs, set_regs};
use crate::maps::Mapping;
use crate::stops;
use crate::waits;

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

/// One ptrace request that passes plain numbers.
pub fn request(request: libc::c_uint, tid: i32, addr: u64, data: u64) -> Result<()> {
    // SAFETY: the requests used with this function take no pointers into our memory.
    let request_it = || unsafe { libc::ptrace(request, tid, addr, data) };
    let result = match request {
        libc::PTRACE_CONT | libc::PTRACE_SYSCALL | libc::PTRACE_DETACH => {
            waits::resume(tid, request_it)
        }
        _ => request_it(),
    };
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

/// The name of a thread, with a byte 0 at its end; nothing, if it is gone.
pub fn comm(tid: i32) -> [u8; 16] {
    let mut name = [0; 16];
    let text = std::fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let length = text.len().min(name.len() - 1);
    name[..length].copy_from_slice(&text[..length]);
    name
}

/// The value of a line of `/proc/TID/status`; `key` ends in a colon.
pub fn status(tid: i32, key: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{tid}/status"))
        .ok()?
        .lines()
        .find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()))
}

/// Is the thread under a seccomp filter?
pub fn is_confined(tid: i32) -> bool {
    status(tid, "Seccomp:").is_some_and(|mode| mode != "0")
}

/// Lets a stopped thread run, delivering `signal` if it is not 0.
pub fn cont(tid: i32, signal: i32) -> Result<()> {
    request(libc::PTRACE_CONT, tid, 0, signal as u64)
}

/// Lets a stopped thread run on untraced.
pub fn detach(tid: i32) -> Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, 0)
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

/// Another process's memory.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    /// Opens the memory of the process that `tid` belongs to. It stays that process's memory across an exec: open anew.
    pub fn open(tid: i32) -> Result<Self> {
        let path = format!("/proc/{tid}/mem");
        let file = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| path.clone())?;
        Ok(Self(file))
    }

    /// Reads all of `buffer`.
    pub fn read(&self, at: u64, buffer: &mut [u8]) -> Result<()> {
        self.0
            .read_exact_at(buffer, at)
            .with_context(|| format!("reading the target's memory at {at:#x}"))
    }

    /// Writes all of `bytes`, also to read-only code (as a debugger does).
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.0
            .write_all_at(bytes, at)
            .with_context(|| format!("writing the target's memory at {at:#x}"))
    }

    /// Reads what can be read of `buffer`; returns how many bytes that was.
    pub fn read_some(&self, at: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            match self
                .0
                .read_at(&mut buffer[done..], at.wrapping_add(done as u64))
            {
                Ok(count) if count > 0 => done += count,
                _ => break,
            }
        }
        done
    }

    /// Reads a word.
    pub fn read_u64(&self, at: u64) -> Result<u64> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}

/// Waits for the next stop of one thread.
fn wait_stop(tid: i32) -> Result<i32> {
    loop {
        let mut status = 0;
        // SAFETY: waitpid writes one int.
        let got = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
        if got == -1 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error).with_context(|| format!("waiting for thread {tid}"));
        }
        if !libc::WIFSTOPPED(status) {
            // Hand the death on as the error of a thread that is gone.
            return Err(io::Error::from_raw_os_error(libc::ESRCH))
                .with_context(|| format!("thread {tid} died"));
        }
        return Ok(status);
    }
}

/// Lets a thread that is stopped inside execve come to that call's end, where its registers are its own.
pub fn leave_exec(tid: i32) -> Result<()> {
    request(libc::PTRACE_SYSCALL, tid, 0, 0)?;
    let status = wait_stop(tid)?;
    if libc::WSTOPSIG(status) != libc::SIGTRAP | 0x80 {
        bail!("thread {tid} stopped with status {status:#x} at the end of execve");
    }
    Ok(())
}

/// Runs system calls in a stopped thread, at an instruction in its memory that makes them. Signals wait meanwhile.
///
/// If hodo is killed meanwhile, the thread goes on from there: after the instruction is code, and below its stack are the registers, by which it
/// comes back to where it was.
#[derive(Debug)]
pub struct Syscalls {
    tid: i32,
    at: u64,
    saved: Regs,
    mask: u64,
    kept: Kept,
    stopped: Cell<bool>,
    /// The registers on its stack, if there is a way back by them.
    home: Option<u64>,
    /// Where the code is that it is lent.
    lent: Option<u64>,
}

impl Syscalls {
    /// `at`: the address of such an instruction.
    pub fn begin(tid: i32, at: u64) -> Result<Self> {
        let saved = regs(tid)?;
        let mask = signal_mask(tid)?;
        let memory = Memory::open(tid)?;
        let mut code = CALL_AND_HOME;
        let leads_home = memory.read(at, &mut code).is_ok() && code == CALL_AND_HOME;
        let home = match saved.home(mask).filter(|_| leads_home) {
            // Without room below its stack, there is no way back.
            Some((home, bytes)) => memory.write(home, &bytes).is_ok().then_some(home),
            None => None,
        };
        let this = Self {
            tid,
            at,
            saved,
            mask,
            kept: Kept::of(tid),
            stopped: Cell::new(false),
            home,
            lent: None,
        };
        if this.home.is_some() {
            // First the way back, then the mask that it takes back.
            this.prepare(libc::SYS_getpid, [0; 6])?;
        }
        set_signal_mask(tid, u64::MAX)?;
        Ok(this)
    }

    /// The same where there is no code of hodo: the end of the kernel's own page is used, if nothing is there, or else some
    /// instruction of the process.
    pub fn begin_anywhere(tid: i32, memory: &Memory, maps: &[Mapping]) -> Result<Self> {
        let page = maps.iter().find(|m| m.path.to_str() == Some("[vdso]"));
        let size = CALL_AND_HOME.len() as u64;
        let lent = page.filter(|_| size > 0).map(|m| (m.end - size) & !15);
        let mut before = CALL_AND_HOME;
        if let Some(at) = lent
            && memory.read(at, &mut before).is_ok()
            // One that was killed may have lent the same.
            && (before == CALL_AND_HOME || before.iter().all(|&byte| byte == 0))
            && memory.write(at, &CALL_AND_HOME).is_ok()
        {
            let begun = Self::begin(tid, at);
            return match begun {
                Ok(mut calls) => {
                    calls.lent = lent;
                    Ok(calls)
                }
                Err(error) => {
                    memory.write(at, &CALL_AND_HOME.map(|_| 0))?;
                    Err(error)
                }
            };
        }
        let at = stops::syscall_place(memory, maps)
            .context("there is no place for system calls in the process")?;
        Self::begin(tid, at)
    }

    /// Takes back the code that it was lent.
    fn give_back(&mut self) -> Result<()> {
        match self.lent.take() {
            Some(at) => Memory::open(self.tid)?.write(at, &CALL_AND_HOME.map(|_| 0)),
            None => Ok(()),
        }
    }

    /// Has the thread make a system call when it goes on.
    fn prepare(&self, number: i64, arguments: [u64; 6]) -> Result<()> {
        let mut regs = self.saved;
        regs.begin_call(self.at, number, arguments);
        if let Some(home) = self.home {
            regs.set_sp(home);
        }
        set_regs(self.tid, &regs)
    }

    /// The thread that runs them.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// One system call; the result is what the kernel returned, errors as negative numbers.
    pub fn call(&self, number: i64, arguments: [u64; 6]) -> Result<i64> {
        self.prepare(number, arguments)?;
        // A stop at its entry, a stop at its exit; neither involves a signal. The exit of the call that the thread was
        // stopped in may come first.
        let mut entered = false;
        let mut signal = 0;
        loop {
            request(libc::PTRACE_SYSCALL, self.tid, 0, signal)?;
            let status = wait_stop(self.tid)?;
            let stop = libc::WSTOPSIG(status);
            signal = 0;
            // No mask holds SIGSTOP back: it takes effect on the process here, on this thread when we are done with it.
            if status >> 16 == libc::PTRACE_EVENT_STOP {
                self.stopped.set(true);
                continue;
            }
            if status >> 16 == 0 && stop == libc::SIGSTOP {
                signal = stop as u64;
                continue;
            }
            if stop != libc::SIGTRAP | 0x80 {
                bail!(
                    "thread {} stopped with status {status:#x} in a system call of ours",
                    self.tid
                );
            }
            match syscall_stop(self.tid)? {
                SYSCALL_ENTRY => entered = true,
                _ if entered => break,
                _ => {}
            }
        }
        Ok(self::regs(self.tid)?.result())
    }

    /// Puts registers and signal mask back in a thread that was stopped by [`interrupt`], and brings it to such a stop again:
    /// only from there the kernel restarts the system call that it was stopped in. No handler of a signal begins meanwhile. Tells
    /// whether the process is stopped as a whole.
    pub fn end_in_stop(mut self) -> Result<bool> {
        let (again, argument) = broken_off(self.tid, &self.saved)?;
        if let Some(argument) = argument {
            // Its argument is what the kernel keeps.
            self.call(libc::SYS_getpid, [argument, 0, 0, 0, 0, 0])?;
        }
        // Already here, for the kernel comes to the stop that is asked for before it looks for signals (`get_signal`). Killed in between,
        // hodo would leave a thread that no signal reaches any more.
        set_signal_mask(self.tid, self.mask)?;
        set_regs(self.tid, &again)?;
        self.kept.put_back(self.tid)?;
        self.give_back()?;
        let mut signal = 0;
        loop {
            interrupt(self.tid)?;
            cont(self.tid, signal)?;
            let status = wait_stop(self.tid)?;
            if status >> 16 == libc::PTRACE_EVENT_STOP {
                return Ok(libc::WSTOPSIG(status) != libc::SIGTRAP);
            }
            signal = match status >> 16 {
                0 => libc::WSTOPSIG(status),
                _ => 0,
            };
        }
    }

    /// Puts registers and signal mask back.
    pub fn end(mut self) -> Result<()> {
        set_signal_mask(self.tid, self.mask)?;
        set_regs(self.tid, &self.saved)?;
        self.kept.put_back(self.tid)?;
        self.give_back()?;
        if self.stopped.get() {
            // It stops again as soon as it runs, and tells whether the process is to be stopped still.
            request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
        }
        Ok(())
    }
}

/// A stop that `PTRACE_SYSCALL` has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Before a system call.
    Entry {
        /// Address after the instruction.
        pc: u64,
        /// The stack pointer.
        sp: u64,
        /// Which.
        number: u64,
        /// Its arguments.
        args: [u64; 6],
    },
    /// Behind one, with its result.
    Exit(u64),
    /// Neither.
    Other,
}

/// Where a thread is that was stopped by `PTRACE_SYSCALL`.
pub fn call(tid: i32) -> Result<Call> {
    let info = syscall_info(tid)?;
    let word = |at: usize| u64::from_le_bytes(info[at..at + 8].try_into().unwrap_or_default());
    Ok(match info[0] {
        SYSCALL_ENTRY => Call::Entry {
            pc: word(8),
            sp: word(16),
            number: word(24),
            args: std::array::from_fn(|index| word(32 + 8 * index)),
        },
        SYSCALL_EXIT => Call::Exit(word(24)),
        _ => Call::Other,
    })
}

/// Which kind of system call stop this is.
fn syscall_stop(tid: i32) -> Result<u8> {
    Ok(syscall_info(tid)?[0])
}

fn syscall_info(tid: i32) -> Result<[u8; 88]> {
    let mut info = [0u8; 88];
    // SAFETY: PTRACE_GET_SYSCALL_INFO writes at most the number of bytes given as addr to `data`.
    let result =
        unsafe { libc::ptrace(PTRACE_GET_SYSCALL_INFO, tid, info.len(), info.as_mut_ptr()) };
    check(result, "the system call", tid)?;
    Ok(info)
}

const SYSCALL_ENTRY: u8 = 1;
const SYSCALL_EXIT: u8 = 2;
const PTRACE_GET_SYSCALL_INFO: libc::c_uint = 0x420e;
const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
