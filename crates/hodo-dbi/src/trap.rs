//! The program's own actions for SIGTRAP and SIGSEGV.
//!
//! Threads stop for hodo at breakpoints, and fault where it wants to hear of them. If a thread blocks or ignores the signal
//! of that, the kernel gives it its default action, and unblocks it (`force_sig_info_to_task`, kernel/signal.c). hodo
//! gives the action back.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::Result;
use hodo_ptrace::{Stopped, TargetAddr};

use crate::process::Process;

/// Bytes of the kernel's `struct sigaction`; the first eight are the handler.
pub(crate) const SIZE: usize = 32;

/// The action of a process for a signal; `None` is the default one.
type Action = Cell<Option<[u8; SIZE]>>;

/// The actions of a process for these signals. Clones are of the same process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Actions {
    trap: Rc<Action>,
    fault: Rc<Action>,
}

impl Actions {
    /// What a program has that was executed just now: signals that were ignored still are.
    pub(crate) fn executed(tid: i32) -> Self {
        let action = |signal| {
            let mut action = [0; SIZE];
            action[0] = libc::SIG_IGN as u8;
            let is_ignored = hodo_ptrace::is_ignored(tid, signal);
            Rc::new(Cell::new(is_ignored.then_some(action)))
        };
        Self {
            trap: action(libc::SIGTRAP),
            fault: action(libc::SIGSEGV),
        }
    }

    /// What a running process has; its thread is stopped.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn of(thread: Stopped, process: &Process) -> Result<Self> {
        let this = Self::default();
        let at = process.scratch(thread)?;
        let calls = process.calls_of(thread)?;
        let read = [libc::SIGTRAP, libc::SIGSEGV].map(|signal| -> Result<()> {
            calls.sigaction(signal, TargetAddr(0), at)?;
            let mut action = [0; SIZE];
            process.memory().read(at, &mut action)?;
            this.set(signal, action);
            Ok(())
        });
        calls.end()?;
        read.into_iter().collect::<Result<()>>()?;
        Ok(this)
    }

    /// The actions of a process that has a copy.
    pub(crate) fn copied(&self) -> Self {
        Self {
            trap: Rc::new(self.trap.as_ref().clone()),
            fault: Rc::new(self.fault.as_ref().clone()),
        }
    }

    fn action(&self, signal: i32) -> &Action {
        match signal {
            libc::SIGSEGV => &self.fault,
            _ => &self.trap,
        }
    }

    /// The program has changed one.
    pub(crate) fn set(&self, signal: i32, action: [u8; SIZE]) {
        let is_default = action[..8].iter().all(|&byte| byte == 0);
        self.action(signal).set((!is_default).then_some(action));
    }

    /// A thread has stopped for hodo by a signal: gives it the program's action again, if it has lost that.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn keep(&self, signal: i32, thread: Stopped, process: &Process) -> Result<()> {
        let Some(action) = self.action(signal).get() else {
            return Ok(());
        };
        let tid = thread.tid();
        let ignored = usize::from(action[0]) == libc::SIG_IGN && action[1..8] == [0; 7];
        let has_it = match ignored {
            true => hodo_ptrace::is_ignored(tid, signal),
            false => hodo_ptrace::is_caught(tid, signal),
        };
        if has_it {
            return Ok(());
        }
        let at = process.scratch(thread)?;
        process.memory().write(at, &action)?;
        let calls = process.calls_of(thread)?;
        calls.sigaction(signal, at, TargetAddr(0))?;
        calls.end()?;
        if ignored {
            return Ok(());
        }
        // It was lost because the thread blocks the signal.
        block(signal, thread)
    }
}

/// A thread has been sent SIGTRAP, and has blocked it: sends it again.
///
/// # Errors
/// If the thread is gone.
pub(crate) fn send_again(thread: Stopped, process: &Process) -> Result<()> {
    block(libc::SIGTRAP, thread)?;
    let calls = process.calls_of(thread)?;
    let sent = calls.raise(libc::SIGTRAP);
    calls.end()?;
    sent
}

fn block(signal: i32, thread: Stopped) -> Result<()> {
    let mask = thread.signal_mask()?;
    thread.set_signal_mask(mask | 1 << (signal - 1))
}
