//! System calls that a stopped thread makes for hodo, and those of its own at which it stops.

use std::cell::Cell;
use std::io;

use anyhow::{Context, Result, bail};

use hodo_agent::call_and_home;

use crate::arch::{Kept, Regs, SYSTEM_CALL, broken_off};
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::processes::failed_by;
use crate::request::check;
use crate::stopped::{Report, Stopped};
use crate::target::{Mapped, TargetAddr, TargetFd};

/// Waits for the next stop of a thread that goes on.
fn wait_stop(thread: Stopped) -> Result<Report> {
    loop {
        let report = match Report::of(thread.tid(), true) {
            Ok(Some(report)) => report,
            Ok(None) => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(error).with_context(|| format!("waiting for thread {thread}"));
            }
        };
        if report.stopped().is_none() {
            // Hand the death on as the error of a thread that is gone.
            return Err(io::Error::from_raw_os_error(libc::ESRCH))
                .with_context(|| format!("thread {thread} died"));
        }
        return Ok(report);
    }
}

impl Stopped {
    /// Lets a thread that is stopped inside execve come to that call's end, where its registers are its own.
    ///
    /// # Errors
    /// If the thread is gone, or stops for something else.
    pub fn leave_exec(self) -> Result<()> {
        self.cont_to_call(0)?;
        let report = wait_stop(self)?;
        if report.signal() != libc::SIGTRAP | 0x80 {
            bail!(
                "thread {self} stopped with status {:#x} at the end of execve",
                report.status()
            );
        }
        Ok(())
    }

    /// Where it is, if [`Stopped::cont_to_call`] has let it run.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn call(self) -> Result<Call> {
        let info = syscall_info(self)?;
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
}

/// Runs system calls in a stopped thread, at an instruction in its memory that makes them. Signals wait meanwhile.
///
/// If hodo is killed meanwhile, the thread goes on from there: after the instruction is code, and below its stack are
/// the registers, by which it comes back to where it was.
#[derive(Debug)]
pub struct Syscalls {
    thread: Stopped,
    at: TargetAddr,
    saved: Regs,
    mask: u64,
    kept: Kept,
    stopped: Cell<bool>,
    /// The registers on its stack, if there is a way back by them.
    home: Option<TargetAddr>,
    /// Where the code is that it is lent, and the memory of its process.
    lent: Option<(TargetAddr, Memory)>,
}

impl Syscalls {
    /// `at`: the address of such an instruction.
    pub fn begin(thread: Stopped, at: TargetAddr) -> Result<Self> {
        Self::begin_in(thread, at, Some(&thread.memory()?))
    }

    /// The same with the memory of the process, which this user may not be able to open any more. `None`: without a way
    /// back.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn begin_in(thread: Stopped, at: TargetAddr, memory: Option<&Memory>) -> Result<Self> {
        let saved = thread.regs()?;
        let mask = thread.signal_mask()?;
        let home = memory.and_then(|memory| way_home(memory, at, saved.home(thread, mask)));
        let this = Self {
            thread,
            at,
            saved,
            mask,
            kept: Kept::of(thread),
            stopped: Cell::new(false),
            home,
            lent: None,
        };
        if this.home.is_some() {
            // First the way back, then the mask that it takes back.
            this.prepare(libc::SYS_getpid, [0; 6])?;
        }
        thread.set_signal_mask(u64::MAX)?;
        Ok(this)
    }

    /// Begins where there is no code of hodo: the end of the kernel's own page is used, if nothing is there, or else
    /// some instruction of the process.
    pub fn begin_anywhere(thread: Stopped, memory: &Memory, maps: &[Mapping]) -> Result<Self> {
        let page = maps.iter().find(|m| m.path.to_str() == Some("[vdso]"));
        let code = call_and_home();
        let size = code.len() as u64;
        let lent = page
            .filter(|_| size > 0)
            .map(|m| TargetAddr((m.end - size) & !15));
        let mut before = code.to_vec();
        if let Some(at) = lent
            && memory.read(at, &mut before).is_ok()
            // One that was killed may have lent the same.
            && (before == code || before.iter().all(|&byte| byte == 0))
            && memory.write(at, code).is_ok()
        {
            let begun = Self::begin_in(thread, at, Some(memory));
            return match begun {
                Ok(mut calls) => {
                    calls.lent = Some((at, memory.another()?));
                    Ok(calls)
                }
                Err(error) => {
                    memory.write(at, &vec![0; code.len()])?;
                    Err(error)
                }
            };
        }
        let at = syscall_place(memory, maps)
            .context("there is no place for system calls in the process")?;
        Self::begin_in(thread, at, Some(memory))
    }

    /// Takes back the code that it was lent.
    fn give_back(&mut self) -> Result<()> {
        match self.lent.take() {
            Some((at, memory)) => {
                let nothing = vec![0; call_and_home().len()];
                memory.write(at, &nothing)
            }
            None => Ok(()),
        }
    }

    /// Has the thread make a system call when it goes on.
    fn prepare(&self, number: i64, arguments: [u64; 6]) -> Result<()> {
        let mut regs = self.saved;
        regs.begin_call(self.at.0, number, arguments);
        if let Some(home) = self.home {
            regs.set_sp(home.0);
        }
        self.thread.set_regs(&regs)
    }

    /// The thread that runs them.
    pub fn thread(&self) -> Stopped {
        self.thread
    }

    /// Maps memory, `fd` or anonymous. `at`: where it is wanted; 0: anywhere. `protection` and `flags` as for `mmap`.
    ///
    /// # Errors
    /// If the thread is gone. What the kernel says is in [`Mapped`].
    pub fn mmap(
        &self,
        at: TargetAddr,
        size: u64,
        protection: i32,
        flags: i32,
        fd: Option<TargetFd>,
    ) -> Result<Mapped> {
        let fd = fd.map_or(u64::MAX, |fd| fd.0);
        let arguments = [at.0, size, protection as u64, flags as u64, fd, 0];
        self.call(libc::SYS_mmap, arguments).map(Mapped)
    }

    /// Unmaps memory. Returns whether the kernel did.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn munmap(&self, at: TargetAddr, size: u64) -> Result<bool> {
        let got = self.call(libc::SYS_munmap, [at.0, size, 0, 0, 0, 0])?;
        Ok(got == 0)
    }

    /// Changes the protection of memory. Returns whether the kernel did.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn mprotect(&self, at: TargetAddr, size: u64, protection: i32) -> Result<bool> {
        let arguments = [at.0, size, protection as u64, 0, 0, 0];
        Ok(self.call(libc::SYS_mprotect, arguments)? == 0)
    }

    /// Tells the kernel how memory is used. If it refuses, nothing is lost.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn madvise(&self, at: TargetAddr, size: u64, advice: i32) -> Result<()> {
        let arguments = [at.0, size, advice as u64, 0, 0, 0];
        self.call(libc::SYS_madvise, arguments).map(drop)
    }

    /// Locks memory, as far as it is used if `on_fault`. Returns whether the kernel did all of it.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn mlock(&self, at: TargetAddr, size: u64, on_fault: bool) -> Result<bool> {
        let (number, flags) = match on_fault {
            true => (libc::SYS_mlock2, u64::from(libc::MLOCK_ONFAULT)),
            false => (libc::SYS_mlock, 0),
        };
        Ok(self.call(number, [at.0, size, flags, 0, 0, 0])? == 0)
    }

    /// `mlockall` with these flags. Returns whether the kernel did it.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn mlockall(&self, flags: u64) -> Result<bool> {
        Ok(self.call(libc::SYS_mlockall, [flags, 0, 0, 0, 0, 0])? == 0)
    }

    /// Locks nothing any more, neither what is mapped nor what will be. Returns whether the kernel did it.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn munlockall(&self) -> Result<bool> {
        Ok(self.call(libc::SYS_munlockall, [0; 6])? == 0)
    }

    /// Closes a file. Returns whether it was open.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn close(&self, fd: TargetFd) -> Result<bool> {
        let arguments = [fd.0, 0, 0, 0, 0, 0];
        Ok(self.call(libc::SYS_close, arguments)? == 0)
    }

    /// Makes a file that is only in memory, with the string at `name` as its name; `flags` as for `memfd_create`.
    /// `None`: the kernel refuses.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn memfd(&self, name: TargetAddr, flags: u32) -> Result<Option<TargetFd>> {
        let arguments = [name.0, flags.into(), 0, 0, 0, 0];
        Ok(fd_of(self.call(libc::SYS_memfd_create, arguments)?).ok())
    }

    /// Makes `to` another number of an open file; `flags` as for `dup3`. Returns whether the kernel did.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn dup(&self, fd: TargetFd, to: TargetFd, flags: i32) -> Result<bool> {
        let arguments = [fd.0, to.0, flags as u64, 0, 0, 0];
        Ok(self.call(libc::SYS_dup3, arguments)? >= 0)
    }

    /// Gives a signal the action that the kernel's `struct sigaction` at `new` has, and writes what it was to `old`; 0
    /// is neither. Returns whether the kernel did.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn sigaction(&self, signal: i32, new: TargetAddr, old: TargetAddr) -> Result<bool> {
        /// Bytes of the kernel's signal mask.
        const MASK: u64 = 8;
        let arguments = [signal as u64, new.0, old.0, MASK, 0, 0];
        Ok(self.call(libc::SYS_rt_sigaction, arguments)? == 0)
    }

    /// Has the thread send itself a signal.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn raise(&self, signal: i32) -> Result<()> {
        let process = self.getpid()?;
        let thread = self.call(libc::SYS_gettid, [0; 6])?;
        let arguments = [process as u64, thread as u64, signal as u64, 0, 0, 0];
        self.call(libc::SYS_tgkill, arguments).map(drop)
    }

    /// Makes every processor that runs a thread of the process execute code as it was last written (`membarrier`,
    /// `MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE`). The process is registered for that. Returns whether the kernel
    /// can.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn sync_core(&self) -> Result<bool> {
        const SYNC_CORE: u64 = 1 << 5;
        const REGISTER_SYNC_CORE: u64 = 1 << 6;
        let registered = self.call(libc::SYS_membarrier, [REGISTER_SYNC_CORE, 0, 0, 0, 0, 0])?;
        let done = self.call(libc::SYS_membarrier, [SYNC_CORE, 0, 0, 0, 0, 0])?;
        Ok(registered == 0 && done == 0)
    }

    /// The number of the thread's process, as that sees it.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn getpid(&self) -> Result<i64> {
        self.call(libc::SYS_getpid, [0; 6])
    }

    /// Opens the file whose path is the string at `path`; `flags` as for `open`. The path begins in the current
    /// directory, if it is relative. `None`: the kernel refuses.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn open(&self, path: TargetAddr, flags: i32) -> Result<Option<TargetFd>> {
        let here = i64::from(libc::AT_FDCWD).cast_unsigned();
        let fd = self.call(libc::SYS_openat, [here, path.0, flags as u64, 0, 0, 0])?;
        Ok(fd_of(fd).ok())
    }

    /// Makes a socket in the file system's name space (`AF_UNIX`); `kind` as for `socket`.
    ///
    /// # Errors
    /// If the thread is gone, or the kernel refuses.
    pub(crate) fn unix_socket(&self, kind: i32) -> Result<TargetFd> {
        let arguments = [libc::AF_UNIX as u64, kind as u64, 0, 0, 0, 0];
        fd_of(self.call(libc::SYS_socket, arguments)?).context("a socket")
    }

    /// Gives a socket the address that these bytes are.
    ///
    /// # Errors
    /// If the thread is gone, or the kernel refuses.
    pub(crate) fn bind(&self, socket: TargetFd, address: TargetAddr, len: u64) -> Result<()> {
        let arguments = [socket.0, address.0, len, 0, 0, 0];
        let bound = self.call(libc::SYS_bind, arguments)?;
        succeeded(bound).context("binding a socket").map(drop)
    }

    /// Receives what the `msghdr` at an address has room for; `flags` as for `recvmsg`.
    ///
    /// # Errors
    /// If the thread is gone, or the kernel refuses.
    pub(crate) fn recvmsg(&self, socket: TargetFd, header: TargetAddr, flags: i32) -> Result<()> {
        let arguments = [socket.0, header.0, flags as u64, 0, 0, 0];
        let got = self.call(libc::SYS_recvmsg, arguments)?;
        succeeded(got).context("receiving a descriptor").map(drop)
    }

    /// One system call; the result is what the kernel returned, errors as negative numbers.
    fn call(&self, number: i64, arguments: [u64; 6]) -> Result<i64> {
        self.prepare(number, arguments)?;
        // A stop at its entry, a stop at its exit; neither involves a signal. The exit of the call that the thread was
        // stopped in may come first.
        let mut entered = false;
        let mut signal = 0;
        loop {
            self.thread.cont_to_call(signal)?;
            let report = wait_stop(self.thread)?;
            let stop = report.signal();
            signal = 0;
            // No mask holds SIGSTOP back: it takes effect on the process here, on this thread when we are done with it.
            if report.is_asked_for() {
                self.stopped.set(true);
                continue;
            }
            if report.event() == 0 && stop == libc::SIGSTOP {
                signal = stop;
                continue;
            }
            if report.event() == libc::PTRACE_EVENT_EXIT {
                // It will never come back; but who looks at it sees it where it was.
                self.thread.set_regs(&self.saved)?;
                return Err(Ending(self.thread).into());
            }
            if stop != libc::SIGTRAP | 0x80 {
                bail!(
                    "thread {} stopped with status {:#x} in a system call of ours",
                    self.thread,
                    report.status()
                );
            }
            match syscall_stop(self.thread)? {
                SYSCALL_ENTRY => entered = true,
                _ if entered => break,
                _ => {}
            }
        }
        Ok(self.thread.regs()?.result())
    }

    /// Puts registers and signal mask back in a thread that was stopped by [`Stopped::interrupt`], and brings it to
    /// such a stop again: only from there the kernel restarts the system call that it was stopped in. No handler of a
    /// signal begins meanwhile. Returns whether the process is stopped as a whole.
    pub fn end_in_stop(mut self) -> Result<bool> {
        let (again, argument) = broken_off(self.thread, &self.saved)?;
        if let Some(argument) = argument {
            // Its argument is what the kernel keeps.
            self.call(libc::SYS_getpid, [argument, 0, 0, 0, 0, 0])?;
        }
        // Already here, for the kernel comes to the stop that is asked for before it looks for signals (`get_signal`).
        // Killed in between, hodo would leave a thread that no signal reaches any more.
        self.thread.set_signal_mask(self.mask)?;
        self.thread.set_regs(&again)?;
        self.kept.put_back(self.thread)?;
        self.give_back()?;
        let mut signal = 0;
        loop {
            self.thread.interrupt()?;
            self.thread.cont(signal)?;
            let report = wait_stop(self.thread)?;
            if report.is_asked_for() {
                return Ok(report.is_group_stop());
            }
            signal = match report.event() {
                0 => report.signal(),
                _ => 0,
            };
        }
    }

    /// Puts registers and signal mask back.
    pub fn end(mut self) -> Result<()> {
        self.thread.set_signal_mask(self.mask)?;
        self.thread.set_regs(&self.saved)?;
        self.kept.put_back(self.thread)?;
        self.give_back()?;
        if self.stopped.get() {
            // It stops again as soon as it runs, and says whether the process is still to be stopped.
            self.thread.interrupt()?;
        }
        Ok(())
    }
}

/// Puts the registers on the stack by which a thread comes back from system calls at `at`, if hodo is killed meanwhile,
/// and the code there does so. `home`: where, and what. `None`: there is no way back.
fn way_home(memory: &Memory, at: TargetAddr, home: Option<(u64, Vec<u8>)>) -> Option<TargetAddr> {
    let leads_home = call_and_home();
    let mut code = leads_home.to_vec();
    if memory.read(at, &mut code).is_err() || code != leads_home {
        return None;
    }
    let (home, bytes) = home?;
    let home = TargetAddr(home);
    // Without room below its stack, there is no way back.
    memory.write(home, &bytes).is_ok().then_some(home)
}

/// Looks into the process of a stopped thread (its memory, its mappings) where this user may not, because the process
/// has forbidden it (`PR_SET_DUMPABLE`): the process allows it meanwhile. `at`: one of its instructions that make
/// system calls.
///
/// # Errors
/// If the thread is gone, or what is looked for is not there.
pub fn look_into<T>(thread: Stopped, at: TargetAddr, look: impl Fn() -> Result<T>) -> Result<T> {
    match look() {
        Err(error) if failed_by(&error, &[libc::EACCES, libc::EPERM]) => {}
        seen => return seen,
    }
    let set = |calls: &Syscalls, dumpable: i64| {
        let arguments = [libc::PR_SET_DUMPABLE as u64, dumpable as u64, 0, 0, 0, 0];
        calls.call(libc::SYS_prctl, arguments)
    };
    let calls = Syscalls::begin_in(thread, at, None)?;
    let before = calls.call(
        libc::SYS_prctl,
        [libc::PR_GET_DUMPABLE as u64, 0, 0, 0, 0, 0],
    )?;
    set(&calls, 1)?;
    let seen = look();
    // The kernel has more values than it lets processes set.
    set(&calls, i64::from(before == 1))?;
    calls.end()?;
    seen
}

/// A thread that is about to end: it is in the stop before that, for which the tracer has asked
/// (`PTRACE_O_TRACEEXIT`), and cannot make system calls any more.
#[derive(Debug, Clone, Copy)]
struct Ending(Stopped);

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "thread {} is about to end", self.0)
    }
}

impl std::error::Error for Ending {}

/// Whether this is the error of a thread that is in the stop before its end.
pub fn is_ending(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Ending>().is_some()
}

/// The result of a system call of the target, or the kernel's error.
fn succeeded(result: i64) -> io::Result<u64> {
    match result {
        0.. => Ok(result.cast_unsigned()),
        error => Err(io::Error::from_raw_os_error(
            i32::try_from(-error).unwrap_or(libc::EIO),
        )),
    }
}

fn fd_of(result: i64) -> io::Result<TargetFd> {
    succeeded(result).map(TargetFd)
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
    /// After one, with its result.
    Exit(u64),
    /// Neither.
    Other,
}

/// Which kind of system call stop this is.
fn syscall_stop(thread: Stopped) -> Result<u8> {
    Ok(syscall_info(thread)?[0])
}

fn syscall_info(thread: Stopped) -> Result<[u8; 88]> {
    let mut info = [0u8; 88];
    // SAFETY: PTRACE_GET_SYSCALL_INFO writes at most the number of bytes given as addr to `data`.
    let result = unsafe {
        let data = info.as_mut_ptr();
        libc::ptrace(PTRACE_GET_SYSCALL_INFO, thread.tid(), info.len(), data)
    };
    check(result, "the system call", thread.tid())?;
    Ok(info)
}

const SYSCALL_ENTRY: u8 = 1;

const SYSCALL_EXIT: u8 = 2;

const PTRACE_GET_SYSCALL_INFO: libc::c_uint = 0x420e;

/// An instruction of the process that makes system calls.
pub fn syscall_place(memory: &Memory, maps: &[Mapping]) -> Option<TargetAddr> {
    // The kernel's own page first: it is always there, and small.
    let order = |m: &&Mapping| m.path.to_str() != Some("[vdso]");
    let mut code: Vec<_> = maps.iter().filter(|m| m.executable).collect();
    code.sort_by_key(order);
    code.iter()
        .filter(|m| m.path.to_str() != Some("[vsyscall]"))
        .find_map(|m| {
            let mut bytes = vec![0; usize::try_from(m.end - m.start).ok()?.min(4 << 20)];
            memory.read(TargetAddr(m.start), &mut bytes).ok()?;
            let mut windows = bytes.windows(SYSTEM_CALL.len());
            let at = windows.position(|code| code == SYSTEM_CALL)?;
            Some(TargetAddr(m.start + at as u64))
        })
}
