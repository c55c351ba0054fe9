//! Which of the signals by which threads stop for hodo each thread blocks.
//!
//! When a thread has stopped for hodo, nobody can tell whether the program blocks the signal: the kernel has unblocked
//! it, and that its action is gone may be because of another thread. So hodo knows it before. It receives the calls
//! that change it, and looks at the mask when a handler begins and when it has returned.

use anyhow::Result;
use hodo_ptrace::{Stopped, TargetAddr, sender};

use super::{Engine, Shared, Thread};
use crate::native::block;
use crate::trap::{OUR_BITS, bit};

impl Thread {
    /// The thread has been stopped where its mask is its own.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn look_at_mask(&mut self, thread: Stopped) -> Result<()> {
        self.blocked.before = None;
        self.block_signals(thread.signal_mask()?)
    }

    fn block_signals(&mut self, mask: u64) -> Result<()> {
        self.blocked.bits = mask & OUR_BITS;
        let (Some(process), Some(at)) = (&self.process, self.block) else {
            return Ok(());
        };
        let at = TargetAddr(at + u64::from(block::BLOCKED));
        let armed = u64::from(self.actions.has_entries());
        // A word of four bytes, and one of two. What comes after them is another one.
        const BYTES: usize = 6;
        let words = (self.blocked.bits | armed << 32).to_le_bytes();
        process.borrow().memory().write(at, &words[..BYTES])
    }

    /// It is about to change its mask by a call with these arguments, at this address in the cache.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn changes_mask(&mut self, args: [u64; 6], at: u64) -> Result<()> {
        const BYTES: u64 = 8;
        let [how, set, _, BYTES, ..] = args else {
            return Ok(());
        };
        let process = self.process.clone();
        let set = process.map(|process| process.borrow().memory().read_u64(TargetAddr(set)));
        let Some(Ok(set)) = set else {
            return Ok(());
        };
        let before = self.blocked.bits;
        let after = match how as i32 {
            libc::SIG_BLOCK => before | set,
            libc::SIG_UNBLOCK => before & !set,
            libc::SIG_SETMASK => set,
            _ => return Ok(()),
        };
        self.blocked.before = Some((at, before));
        self.block_signals(after)
    }

    /// A signal has come when it was at this address in the cache. If that is before a call, the call comes later.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn comes_before_call(&mut self, at: u64) -> Result<()> {
        match self.blocked.before.take() {
            Some((call, before)) if call == at => self.block_signals(before),
            _ => Ok(()),
        }
    }
}

impl Engine {
    /// Repairs what a stop by a signal does to a thread that blocks or ignores the signal.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn keep(&self, signal: i32, thread: Stopped, process: &Shared) -> Result<()> {
        let Some(known) = self.threads.get(&thread.tid()) else {
            return Ok(());
        };
        let is_blocked = known.blocked.bits & bit(signal) != 0;
        let process = process.borrow();
        known.actions.keep(signal, is_blocked, thread, &process)
    }

    /// A thread has made steps while all of its signals waited.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn keep_after_steps(
        &self,
        signal: i32,
        thread: Stopped,
        process: &Shared,
    ) -> Result<()> {
        match self.threads.get(&thread.tid()) {
            Some(known) => known.actions.give_back(signal, thread, &process.borrow()),
            None => Ok(()),
        }
    }

    /// A thread has been sent SIGTRAP, and has come to a breakpoint of hodo: that has taken the signal away. Sends it
    /// again.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn send_again(
        &mut self,
        thread: Stopped,
        process: &Shared,
        info: &libc::siginfo_t,
    ) -> Result<()> {
        let process = process.borrow();
        let calls = process.calls_of(thread)?;
        let sent = calls.raise(libc::SIGTRAP);
        calls.end()?;
        if let Some(known) = self.threads.get_mut(&thread.tid()) {
            known.sent_again = Some(*info);
        }
        sent
    }

    /// A signal is about to be delivered to a thread that has a handler, or to end it. If another thread has lost the
    /// handler, and hodo does not know of that yet, the signal comes again. Returns whether it does.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn waits_for_action(
        &mut self,
        thread: Stopped,
        signal: i32,
        is_fault: bool,
    ) -> Result<bool> {
        let Some(known) = self.threads.get_mut(&thread.tid()) else {
            return Ok(false);
        };
        if !known.actions.handles(signal) || hodo_ptrace::is_caught(thread.tid(), signal) {
            known.waits = 0;
            known.actions.begins(signal);
            return Ok(false);
        }
        /// So often a signal comes again at most.
        const OFTEN: u32 = 1000;
        known.waits += 1;
        if known.waits > OFTEN {
            return Ok(false);
        }
        if !is_fault {
            known.sent_again = Some(thread.siginfo()?);
            hodo_ptrace::send(thread.tid(), signal)?;
        }
        Ok(true)
    }

    /// A signal that hodo has sent again is about to be delivered: shows what it was.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn show_sent(
        &mut self,
        thread: Stopped,
        signal: i32,
        info: &libc::siginfo_t,
    ) -> Result<()> {
        let known = self.threads.get_mut(&thread.tid());
        let Some(sent) = known.and_then(|known| {
            // Another signal may come first.
            known.sent_again.take_if(|sent| sent.si_signo == signal)
        }) else {
            return Ok(());
        };
        let mut own = hodo_ptrace::numbers_of(thread.tid());
        // hodo has no number in the namespace of a program that is in another one.
        own.extend([0, std::process::id().cast_signed()]);
        let is_ours = info.si_code == libc::SI_TKILL && own.contains(&sender(info));
        match is_ours {
            true => thread.set_siginfo(&sent),
            false => Ok(()),
        }
    }
}
