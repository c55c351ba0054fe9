//! How long a thread has waited in a system call that a stop interrupts, so that it waits only for the rest when the
//! call is restarted.
//!
//! The kernel says when a thread was last on a processor (`se.exec_start` in `/proc/TID/sched`): that is when it began
//! to wait. The clock is the processor's own, and in a virtual machine those of two processors differ by seconds, for
//! each leaves out what was stolen from it (`update_rq_clock_task` in `kernel/sched/core.c`). So a thread of hodo goes
//! to that processor for a moment, to see what its clock says now. What is left out makes the wait seem shorter, never
//! longer. Where this is not known, what counts is the time from the stop on.

mod sockets;

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::arch::{EPOLL_WAIT, Regs};
use crate::status::call_of;
use crate::stopped::Stopped;
use crate::target::TargetAddr;
use sockets::Timed;
pub use sockets::resume;

/// How far below the stack pointer the kernel finds the time that is left: nothing of the program's is there.
const BELOW: u64 = 1024;

thread_local! {
    static NOTED: RefCell<HashMap<i32, Noted>> = RefCell::default();
}

/// The call that a thread has waited in.
#[derive(Debug)]
pub struct Noted {
    /// It, and if finding out how long took a while, the call that the thread waits in now. For each, the arguments,
    /// the stack pointer, and the address of the next instruction.
    calls: [Option<(i64, Vec<u64>)>; 2],
    wait: Option<Wait>,
}

impl Noted {
    /// The call's first argument, for a thread with `regs` that has stopped after it: a register has the result
    /// instead. Nothing if it is another call by now, or has other arguments.
    pub fn first_argument(&self, regs: &Regs) -> Option<u64> {
        let [_, now @ ..] = regs.call().1;
        let ends = [regs.sp(), regs.pc()];
        self.calls.iter().flatten().find_map(|(call, arguments)| {
            let (&first, others) = arguments.split_first()?;
            let is_same =
                regs.system_call() == Some(*call) && others.iter().eq(now.iter().chain(&ends));
            is_same.then_some(first)
        })
    }

    /// How long it had waited, if the call ends after a certain time.
    pub fn wait(self) -> Option<Wait> {
        self.wait
    }
}

/// A call that ends after a certain time, and how long its thread had waited in it at a moment.
#[derive(Debug)]
pub struct Wait {
    call: i64,
    timeout: Timeout,
    waited: Duration,
    at: Instant,
}

/// How a call learns how long it may wait.
#[derive(Debug, Clone, Copy)]
enum Timeout {
    /// Milliseconds are the argument with this number.
    Milliseconds(usize, u64),
    /// The argument with this number leads to seconds and nanoseconds.
    Address(usize, u64),
    /// The socket knows.
    Socket(Timed),
}

fn timeout(tid: i32, call: i64, arguments: &[u64]) -> Option<Timeout> {
    let argument = |index: usize| arguments.get(index).copied();
    match call {
        // Any negative number is for ever. Not every machine has two such calls.
        _ if call == EPOLL_WAIT || call == libc::SYS_epoll_pwait => argument(3)
            .filter(|&time| time as i32 >= 0)
            .map(|time| Timeout::Milliseconds(3, time & u64::from(u32::MAX))),
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => argument(3)
            .filter(|&at| at != 0)
            .map(|at| Timeout::Address(3, at)),
        libc::SYS_rt_sigtimedwait => argument(2)
            .filter(|&at| at != 0)
            .map(|at| Timeout::Address(2, at)),
        libc::SYS_io_getevents => argument(4)
            .filter(|&at| at != 0)
            .map(|at| Timeout::Address(4, at)),
        _ => sockets::timed(tid, call, arguments).map(Timeout::Socket),
    }
}

/// When a thread was last on a processor, in milliseconds of that processor's clock. The directory is the thread's.
fn last_ran(thread: &str) -> Option<f64> {
    let text = std::fs::read_to_string(format!("{thread}/sched")).ok()?;
    let line = text
        .lines()
        .find(|line| line.starts_with("se.exec_start"))?;
    line.split(':').nth(1)?.trim().parse().ok()
}

/// On which processor a thread was last.
fn processor(thread: &str) -> Option<usize> {
    /// Of its number among the words that follow the name.
    const INDEX: usize = 39 - 3;
    let text = std::fs::read_to_string(format!("{thread}/stat")).ok()?;
    let (_, words) = text.rsplit_once(')')?;
    words.split_whitespace().nth(INDEX)?.parse().ok()
}

/// What the clock of a processor says, in milliseconds; a tick ago at most.
fn clock(processor: usize) -> Option<f64> {
    const SIZE: usize = size_of::<libc::cpu_set_t>();
    if processor >= SIZE * 8 {
        return None;
    }
    // SAFETY: all-zero is a valid set, the processor is one that fits, and the calls read and write one set each.
    unsafe {
        let mut before: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, SIZE, &raw mut before) != 0 {
            return None;
        }
        let mut there: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut there);
        if libc::sched_setaffinity(0, SIZE, &raw const there) != 0 {
            return None;
        }
        // The kernel looks at the clock when it might change to another thread.
        libc::sched_yield();
        let now = last_ran("/proc/thread-self");
        libc::sched_setaffinity(0, SIZE, &raw const before);
        now
    }
}

/// How long a thread has been off its processor.
fn waited(tid: i32) -> Option<Duration> {
    let thread = format!("/proc/{tid}");
    let since = last_ran(&thread)?;
    let waited = clock(processor(&thread)?)? - since;
    // It has not been on a processor meanwhile.
    let waited = (last_ran(&thread)? == since).then_some(waited)?;
    Duration::try_from_secs_f64(waited / 1e3).ok()
}

/// Remembers what a thread waits for that is about to be stopped.
pub fn note(tid: i32) {
    let noted = call_of(tid).map(|(call, arguments)| {
        let mut last = None;
        let wait = timeout(tid, call, &arguments).map(|timeout| {
            let before = sockets::before(tid);
            let waited = waited(tid).map(|waited| waited + before);
            let at = Instant::now();
            // It may have gone on meanwhile, and be in another call by now.
            let now = call_of(tid);
            let same = now.as_ref() == Some(&(call, arguments.clone()));
            last = now.filter(|_| !same);
            Wait {
                call,
                timeout,
                waited: waited.filter(|_| same).unwrap_or_default(),
                at,
            }
        });
        Noted {
            calls: [last, Some((call, arguments))],
            wait,
        }
    });
    NOTED.with_borrow_mut(|all| match noted {
        Some(noted) => all.insert(tid, noted),
        None => all.remove(&tid),
    });
}

/// The first argument of a call that waits for events of an epoll descriptor, if the kernel does not tell it and it was
/// not noted: the only such descriptor of the process, if it has one.
pub fn only_epoll(tid: i32, regs: &Regs) -> Option<u64> {
    const CALLS: [i64; 3] = [EPOLL_WAIT, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
    regs.system_call().filter(|call| CALLS.contains(call))?;
    let files = std::fs::read_dir(format!("/proc/{tid}/fd")).ok()?;
    let mut found = files.filter_map(|file| {
        let path = file.ok()?.path();
        let target = std::fs::read_link(&path).ok()?;
        let number = path.file_name()?.to_str()?.parse().ok()?;
        (target.to_str()? == "anon_inode:[eventpoll]").then_some(number)
    });
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// Takes what was remembered of a thread.
pub fn take(tid: i32) -> Option<Noted> {
    NOTED.with_borrow_mut(|all| all.remove(&tid))
}

impl Wait {
    /// Has a stopped thread, which is about to make the call again with `regs` and this first argument, wait for what
    /// is left of its time. Only a register is changed, one that functions need not keep.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn shorten(&self, thread: Stopped, regs: &mut Regs, first: Option<u64>) -> Result<()> {
        let tid = thread.tid();
        let waited = (self.waited + self.at.elapsed()).as_nanos();
        if regs.system_call() != Some(self.call) {
            return Ok(());
        }
        // The same call with other arguments is another one, of which nothing is known.
        let (_, arguments) = regs.call();
        let is_noted = |index: usize, noted: u64, mask: u64| arguments[index] & mask == noted;
        match self.timeout {
            Timeout::Socket(timed) if timed.is_of(first) => {
                sockets::shorten(tid, (self.call, timed), self.waited, self.at);
            }
            Timeout::Milliseconds(index, time) if is_noted(index, time, u64::from(u32::MAX)) => {
                regs.set_argument(index, time.saturating_sub((waited / 1_000_000) as u64));
            }
            Timeout::Address(index, at) if is_noted(index, at, u64::MAX) => {
                let memory = thread.memory()?;
                let (Ok(seconds), Ok(nanoseconds)) = (
                    memory.read_u64(TargetAddr(at)),
                    memory.read_u64(TargetAddr(at + 8)),
                ) else {
                    return Ok(());
                };
                let left = (u128::from(seconds) * 1_000_000_000 + u128::from(nanoseconds))
                    .saturating_sub(waited);
                let place = regs.sp().wrapping_sub(BELOW) & !15;
                let words = [left / 1_000_000_000, left % 1_000_000_000];
                let bytes: Vec<u8> = words
                    .iter()
                    .flat_map(|&word| (word as u64).to_le_bytes())
                    .collect();
                // Where there is no more stack, it waits anew.
                if memory.write(TargetAddr(place), &bytes).is_ok() {
                    regs.set_argument(index, place);
                }
            }
            Timeout::Socket(_) | Timeout::Milliseconds(..) | Timeout::Address(..) => {}
        }
        Ok(())
    }
}
