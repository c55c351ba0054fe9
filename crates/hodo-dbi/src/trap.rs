//! The program's own actions for the signals by which its threads stop for hodo.
//!
//! Threads stop for hodo at breakpoints, and fault where it wants to hear of them. If a thread blocks or ignores the signal
//! of that, the kernel gives it its default action, and unblocks it (`force_sig_info_to_task`, kernel/signal.c). hodo
//! gives the action back, and blocks the signal again.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::Result;
use hodo_ptrace::{Stopped, TargetAddr};

use crate::process::Process;

/// Bytes of the kernel's `struct sigaction`; the first eight are the handler, and the next eight the flags.
pub(crate) const SIZE: usize = 32;

/// Signals by which threads stop for hodo.
pub(crate) const OURS: [i32; 3] = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS];
/// Their bits in a mask.
pub(crate) const OUR_BITS: u64 = bit(libc::SIGTRAP) | bit(libc::SIGSEGV) | bit(libc::SIGBUS);

pub(crate) const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The action of a process for a signal; `None` is the default one.
type Action = Cell<Option<[u8; SIZE]>>;

/// The actions of a process for these signals. Clones are of the same process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Actions(Rc<[Action; OURS.len()]>);

fn is_ignoring(action: &[u8; SIZE]) -> bool {
    usize::from(action[0]) == libc::SIG_IGN && action[1..8] == [0; 7]
}

impl Actions {
    /// What a program has that was executed just now: signals that were ignored still are.
    pub(crate) fn executed(tid: i32) -> Self {
        let action = |signal| {
            let mut action = [0; SIZE];
            action[0] = libc::SIG_IGN as u8;
            let is_ignored = hodo_ptrace::is_ignored(tid, signal);
            Cell::new(is_ignored.then_some(action))
        };
        Self(Rc::new(OURS.map(action)))
    }

    /// What a running process has; its thread is stopped.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn of(thread: Stopped, process: &Process) -> Result<Self> {
        let this = Self::default();
        let at = process.scratch(thread)?;
        let calls = process.calls_of(thread)?;
        let read = OURS.map(|signal| -> Result<()> {
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
        Self(Rc::new(self.0.as_ref().clone()))
    }

    fn action(&self, signal: i32) -> Option<&Action> {
        let number = OURS.iter().position(|&our| our == signal)?;
        Some(&self.0[number])
    }

    fn get(&self, signal: i32) -> Option<[u8; SIZE]> {
        self.action(signal)?.get()
    }

    /// The program has changed one.
    pub(crate) fn set(&self, signal: i32, new: [u8; SIZE]) {
        let is_default = new[..8].iter().all(|&byte| byte == 0);
        if let Some(action) = self.action(signal) {
            action.set((!is_default).then_some(new));
        }
    }

    /// A handler is about to begin: some are for one time only.
    pub(crate) fn begins(&self, signal: i32) {
        let flags = |action: [u8; SIZE]| i32::from_le_bytes([8, 9, 10, 11].map(|at| action[at]));
        if let Some(action) = self.action(signal)
            && let Some(now) = action.get()
            && flags(now) & libc::SA_RESETHAND != 0
        {
            action.set(None);
        }
    }

    /// Whether the program has a handler for a signal.
    pub(crate) fn handles(&self, signal: i32) -> bool {
        self.get(signal).is_some_and(|action| !is_ignoring(&action))
    }

    /// A thread has lost the action for a signal: gives it back.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn give_back(&self, signal: i32, thread: Stopped, process: &Process) -> Result<()> {
        let Some(action) = self.get(signal) else {
            return Ok(());
        };
        let at = process.scratch(thread)?;
        process.memory().write(at, &action)?;
        let calls = process.calls_of(thread)?;
        calls.sigaction(signal, at, TargetAddr(0))?;
        calls.end()
    }

    /// A thread has stopped for hodo by a signal: gives it back what it has lost by that. `is_blocked`: the program blocks
    /// the signal.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn keep(
        &self,
        signal: i32,
        is_blocked: bool,
        thread: Stopped,
        process: &Process,
    ) -> Result<()> {
        if is_blocked || self.get(signal).is_some_and(|action| is_ignoring(&action)) {
            self.give_back(signal, thread, process)?;
        }
        if is_blocked {
            let mask = thread.signal_mask()?;
            thread.set_signal_mask(mask | bit(signal))?;
        }
        Ok(())
    }
}

/// Which signals of hodo a thread blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Blocked {
    pub(crate) bits: u64,
    /// What that was before the call that the thread is about to make at this address in the cache.
    pub(crate) before: Option<(u64, u64)>,
}
