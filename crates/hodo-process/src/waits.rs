//! For how long a thread has waited in a system call that a stop breaks off, so that it waits only for what is left when the call is made
//! again.
//!
//! The kernel says when a thread was last on a processor (`se.exec_start` in `/proc/TID/sched`): before the stop, that is when it began to
//! wait, and after it, it is now, by the same clock. Kernels without that line, and calls that have their time from elsewhere (sockets),
//! wait anew.

use std::cell::RefCell;
use std::collections::HashMap;

use anyhow::Result;

use crate::machine::EPOLL_WAIT;
use crate::remote::{Memory, Regs};
use crate::stops::call_of;

/// How far below the stack pointer the kernel finds the time that is left: nothing of the program's is there.
const BELOW: u64 = 1024;

thread_local! {
    static WAITS: RefCell<HashMap<i32, Wait>> = RefCell::default();
}

/// A call that ends after a certain time, and since when its thread waits, in milliseconds.
#[derive(Debug)]
pub struct Wait {
    call: i64,
    timeout: Timeout,
    since: f64,
}

/// How a call is told for how long it may wait.
#[derive(Debug, Clone, Copy)]
enum Timeout {
    /// Milliseconds are the argument with this number.
    Milliseconds(usize, u64),
    /// The argument with this number leads to seconds and nanoseconds.
    Address(usize, u64),
}

fn timeout(call: i64, arguments: &[u64]) -> Option<Timeout> {
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
        _ => None,
    }
}

/// When a thread was last on a processor, in milliseconds.
fn last_ran(tid: i32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{tid}/sched")).ok()?;
    let line = text
        .lines()
        .find(|line| line.starts_with("se.exec_start"))?;
    line.split(':').nth(1)?.trim().parse().ok()
}

/// Remembers what a thread waits for that is about to be stopped.
pub fn note(tid: i32) {
    let wait = call_of(tid).and_then(|(call, arguments)| {
        Some(Wait {
            call,
            timeout: timeout(call, &arguments)?,
            since: last_ran(tid)?,
        })
    });
    WAITS.with_borrow_mut(|waits| match wait {
        Some(wait) => waits.insert(tid, wait),
        None => waits.remove(&tid),
    });
}

/// Takes what was remembered of a thread.
pub fn take(tid: i32) -> Option<Wait> {
    WAITS.with_borrow_mut(|waits| waits.remove(&tid))
}

impl Wait {
    /// Has a stopped thread, which is about to make the call again with `regs`, wait for what is left of its time. Only a register is
    /// changed, one that functions need not keep.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn shorten(&self, tid: i32, regs: &mut Regs) -> Result<()> {
        let waited = last_ran(tid).map(|now| now - self.since);
        let Some(waited) = waited.filter(|waited| *waited >= 0.0) else {
            return Ok(());
        };
        if regs.system_call() != Some(self.call) {
            return Ok(());
        }
        match self.timeout {
            Timeout::Milliseconds(index, time) => {
                regs.set_argument(index, time.saturating_sub(waited as u64));
            }
            Timeout::Address(index, at) => {
                let memory = Memory::open(tid)?;
                let (Ok(seconds), Ok(nanoseconds)) = (memory.read_u64(at), memory.read_u64(at + 8))
                else {
                    return Ok(());
                };
                let left = (u128::from(seconds) * 1_000_000_000 + u128::from(nanoseconds))
                    .saturating_sub((waited * 1e6) as u128);
                let place = regs.sp().wrapping_sub(BELOW) & !15;
                let words = [left / 1_000_000_000, left % 1_000_000_000];
                let bytes: Vec<u8> = words
                    .iter()
                    .flat_map(|&word| (word as u64).to_le_bytes())
                    .collect();
                // Where there is no more stack, it waits anew.
                if memory.write(place, &bytes).is_ok() {
                    regs.set_argument(index, place);
                }
            }
        }
        Ok(())
    }
}
