//! The program's own action for SIGTRAP.
//!
//! Threads stop for hodo at breakpoints. If a thread blocks or ignores SIGTRAP, the kernel gives the signal its default
//! action at such a stop, and unblocks it (`force_sig_info_to_task`, kernel/signal.c). hodo gives the action back.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::Result;
use hodo_ptrace::{Stopped, TargetAddr};

use crate::process::Process;

/// Bytes of the kernel's `struct sigaction`; the first eight are the handler.
pub(crate) const SIZE: usize = 32;

/// The action of a process for SIGTRAP. Clones are of the same process.
#[derive(Debug, Clone, Default)]
pub(crate) struct TrapAction(Rc<Cell<Option<[u8; SIZE]>>>);

impl TrapAction {
    /// What a program has that was executed just now: signals that were ignored still are.
    pub(crate) fn executed(tid: i32) -> Self {
        let mut action = [0; SIZE];
        action[0] = libc::SIG_IGN as u8;
        let is_ignored = hodo_ptrace::is_ignored(tid, libc::SIGTRAP);
        Self(Rc::new(Cell::new(is_ignored.then_some(action))))
    }

    /// The action of a process that has a copy.
    pub(crate) fn copied(&self) -> Self {
        Self(Rc::new(self.0.as_ref().clone()))
    }

    /// The program has changed it.
    pub(crate) fn set(&self, action: [u8; SIZE]) {
        let is_default = action[..8].iter().all(|&byte| byte == 0);
        self.0.set((!is_default).then_some(action));
    }

    /// A thread has come to a breakpoint: gives it the program's action again, if it has lost that.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn keep(&self, thread: Stopped, process: &Process) -> Result<()> {
        let Some(action) = self.0.get() else {
            return Ok(());
        };
        let tid = thread.tid();
        let ignored = usize::from(action[0]) == libc::SIG_IGN && action[1..8] == [0; 7];
        let has_it = match ignored {
            true => hodo_ptrace::is_ignored(tid, libc::SIGTRAP),
            false => hodo_ptrace::is_caught(tid, libc::SIGTRAP),
        };
        if has_it {
            return Ok(());
        }
        let at = process.scratch(thread)?;
        process.memory().write(at, &action)?;
        let calls = process.calls_of(thread)?;
        calls.sigaction(libc::SIGTRAP, at, TargetAddr(0))?;
        calls.end()?;
        if ignored {
            return Ok(());
        }
        // It was lost because the thread blocks the signal.
        block(thread)
    }
}

/// A thread has been sent SIGTRAP, and has blocked it: sends it again.
///
/// # Errors
/// If the thread is gone.
pub(crate) fn send_again(thread: Stopped, process: &Process) -> Result<()> {
    block(thread)?;
    let calls = process.calls_of(thread)?;
    let sent = calls.raise(libc::SIGTRAP);
    calls.end()?;
    sent
}

fn block(thread: Stopped) -> Result<()> {
    let mask = thread.signal_mask()?;
    thread.set_signal_mask(mask | 1 << (libc::SIGTRAP - 1))
}
