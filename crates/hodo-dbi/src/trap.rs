//! The program's own actions for the signals by which its threads stop for hodo.
//!
//! Threads stop for hodo at breakpoints, and fault where it wants to know of them. If a thread blocks or ignores the
//! signal of that, the kernel gives it its default action, and unblocks it (`force_sig_info_to_task`, kernel/signal.c).
//! hodo gives the action back, and blocks the signal again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::Result;
use hodo_ptrace::{Stopped, TargetAddr};

use crate::process::{Place, Process};

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

/// A handler whose translation the kernel has as the handler: threads come there without a stop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// Where the handler is in the program,
    pub(crate) handler: u64,
    /// and in the cache.
    pub(crate) at: u64,
    /// The signals that are blocked while it runs.
    pub(crate) blocks: u64,
}

/// The actions of a process for these signals, and handlers of others. Clones are of the same process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Actions {
    ours: Rc<[Action; OURS.len()]>,
    entries: Rc<RefCell<BTreeMap<i32, Entry>>>,
}

/// The flags of an action.
fn flags(action: &[u8; SIZE]) -> i32 {
    i32::from_le_bytes([8, 9, 10, 11].map(|at| action[at]))
}

/// The word of an action that begins here: the handler is the first one, and the mask the last one.
fn word(action: &[u8; SIZE], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| action[at + byte]))
}

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
        Self {
            ours: Rc::new(OURS.map(action)),
            entries: Rc::default(),
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
        Self {
            ours: Rc::new(self.ours.as_ref().clone()),
            entries: Rc::new(self.entries.as_ref().clone()),
        }
    }

    /// Those of a process that is made without handlers.
    pub(crate) fn without_handlers(&self) -> Self {
        let this = Self {
            entries: Rc::default(),
            ..self.copied()
        };
        for (signal, action) in OURS.into_iter().zip(this.ours.iter()) {
            if this.handles(signal) {
                action.set(None);
            }
        }
        this
    }

    /// A handler that the kernel has in the cache.
    pub(crate) fn entry(&self, signal: i32) -> Option<Entry> {
        self.entries.borrow().get(&signal).copied()
    }

    /// Whether there are such handlers.
    pub(crate) fn has_entries(&self) -> bool {
        !self.entries.borrow().is_empty()
    }

    /// The program has changed the action for a signal, or is about to do so.
    pub(crate) fn forget_entry(&self, signal: i32) {
        self.entries.borrow_mut().remove(&signal);
    }

    /// Has the kernel use the translation of a signal's handler, unless that is for one time only, or is another one
    /// than this. The thread is stopped.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn arm(
        &self,
        (signal, handler): (i32, u64),
        thread: Stopped,
        process: &Process,
    ) -> Result<()> {
        let Some(at) = process.known(handler) else {
            return Ok(());
        };
        let memory = process.memory();
        let place = process.scratch(thread)?;
        let calls = process.calls_of(thread)?;
        let read = || -> Result<[u8; SIZE]> {
            let mut action = [0; SIZE];
            memory.read(place, &mut action)?;
            Ok(action)
        };
        calls.sigaction(signal, TargetAddr(0), place)?;
        let before = read()?;
        let now = word(&before, 0);
        let is_this = now == handler
            || matches!(process.place(now), Some(Place::At(point)) if point.original == handler);
        if is_this && flags(&before) & libc::SA_RESETHAND == 0 {
            let mut action = before;
            action[..8].copy_from_slice(&at.to_le_bytes());
            memory.write(place, &action)?;
            calls.sigaction(signal, place, place)?;
            if read()? == before {
                let own = match flags(&before) & libc::SA_NODEFER {
                    0 => bit(signal),
                    _ => 0,
                };
                let entry = Entry {
                    handler,
                    at,
                    blocks: word(&before, 24) | own,
                };
                self.entries.borrow_mut().insert(signal, entry);
            } else {
                // Another thread has changed it in between.
                calls.sigaction(signal, place, TargetAddr(0))?;
            }
        }
        calls.end()
    }

    /// Has the kernel use the program's own handlers again. Returns whether the process is stopped as a whole, if it
    /// had to look.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn disarm(&self, thread: Stopped, process: &Process) -> Result<Option<bool>> {
        let entries = std::mem::take(&mut *self.entries.borrow_mut());
        if entries.is_empty() {
            return Ok(None);
        }
        let place = process.scratch(thread)?;
        let calls = process.calls_of(thread)?;
        for (signal, entry) in entries {
            calls.sigaction(signal, TargetAddr(0), place)?;
            if process.memory().read_u64(place)? == entry.at {
                process
                    .memory()
                    .write(place, &entry.handler.to_le_bytes())?;
                calls.sigaction(signal, place, TargetAddr(0))?;
            }
        }
        calls.end_in_stop().map(Some)
    }

    fn action(&self, signal: i32) -> Option<&Action> {
        let number = OURS.iter().position(|&our| our == signal)?;
        Some(&self.ours[number])
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
        if let Some(action) = self.action(signal)
            && let Some(now) = action.get()
            && flags(&now) & libc::SA_RESETHAND != 0
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

    /// A thread has stopped for hodo by a signal: gives it back what it has lost by that. `is_blocked`: the program
    /// blocks the signal.
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
