//! How threads come to handlers of signals, and back.
//!
//! A thread stops for a signal in any case. hodo gives it the program's state, and the kernel makes the handler's frame
//! of that. When a handler runs for the first time, the thread stops there once more, and hodo has the kernel use the
//! handler's translation as the handler from then on: later signals lead there at once. The program still finds its own
//! handler where it asks for it. The return finds the interrupted instruction in the table of targets.

use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use hodo_ptrace::stops::{self, OWN};
use hodo_ptrace::{Regs, Report, Stopped, TargetAddr};

use super::{Engine, Shared, lead};
use crate::native::system_call::MASKING;
use crate::native::{GENERAL, block};
use crate::process::{Place, Process};
use crate::trap::{OUR_BITS, OURS, SIZE};

/// So long a program runs that has not come further between two signals.
const AWHILE: Duration = Duration::from_micros(100);

/// Bytes of the instruction before the one at which a thread is in a system call.
const CALL: u64 = hodo_isa::native::asm::SYSTEM_CALL.len() as u64;

impl Engine {
    /// A thread is about to take a signal before an instruction of the program. If it has executed nothing since it
    /// took that signal the last time, signals come faster than they can be delivered: it gets this one a little later,
    /// so that it comes further. Returns whether it goes on.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn stands_still(
        &mut self,
        thread: Stopped,
        process: &Shared,
        (signal, regs): (i32, &Regs),
    ) -> Result<bool> {
        // Those from here on queue up, and arrive in the order in which they were sent.
        const REAL_TIME: i32 = 32;
        if signal >= REAL_TIME
            || regs.system_call().is_some()
            || regs.is_stepping()
            || self.parked.is_some()
        {
            return Ok(false);
        }
        let Some(known) = self.threads.get_mut(&thread.tid()) else {
            return Ok(false);
        };
        let registers = (0..GENERAL).map(|number| regs.general(number)).collect();
        let now = (regs.pc(), registers);
        if known.progress.found.insert(signal, now.clone()) != Some(now) {
            return Ok(false);
        }
        // The next one is delivered in any case.
        known.progress.found.remove(&signal);
        known.sent_again = Some(thread.siginfo()?);
        hodo_ptrace::send(thread.tid(), signal)?;
        let mask = thread.signal_mask()?;
        known.progress.held = Some(mask);
        let caused = OWN.iter().fold(0, |all, &signal| all | stops::bit(signal));
        thread.set_signal_mask(mask | !(caused | stops::bit(libc::SIGSYS)))?;
        lead(thread, process, regs.pc())?;
        // The program must not see that mask.
        thread.cont_to_call(0)?;
        std::thread::sleep(AWHILE);
        match Report::of(thread.tid(), false) {
            Ok(Some(report)) => hodo_follow::deal(self, report)?,
            _ => thread.interrupt()?,
        }
        Ok(true)
    }

    /// A thread has stopped: if signals wait, they do not any more.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn end_wait(&mut self, thread: Stopped, is_asked_for: bool) -> Result<()> {
        let known = self.threads.get_mut(&thread.tid());
        let Some(mask) = known.and_then(|known| known.progress.held.take()) else {
            return Ok(());
        };
        thread.set_signal_mask(mask)?;
        match is_asked_for {
            // It may have come to a call that must not be broken off.
            true => stops::restart_call(thread),
            false => Ok(()),
        }
    }

    /// Whether the kernel leads a thread that takes a signal to the right place of the cache.
    pub(super) fn leads_to_handler(
        &self,
        thread: Stopped,
        process: &Process,
        regs: &Regs,
        signal: i32,
    ) -> bool {
        let Some(known) = self.threads.get(&thread.tid()) else {
            return false;
        };
        let Some(entry) = known.actions.entry(signal) else {
            return false;
        };
        let is_masking = |number: i64| MASKING.contains(&number);
        process.known(entry.handler) == Some(entry.at)
            && entry.blocks & OUR_BITS & !known.blocked.bits == 0
            && !regs.is_stepping()
            && !regs.system_call().is_some_and(is_masking)
    }

    /// A handler is about to interrupt a thread before an instruction of the program: its return finds that.
    ///
    /// # Errors
    /// If the process is gone.
    pub(super) fn lead_back(&mut self, process: &Shared, regs: &Regs) -> Result<()> {
        let mut process = process.borrow_mut();
        // The kernel may have the thread make its call again.
        let before = regs.system_call().map(|_| regs.pc().wrapping_sub(CALL));
        for pc in before.into_iter().chain([regs.pc()]) {
            if let Some(at) = process.known(pc)
                && process.leads(pc) != Some(at)
            {
                process.put_targets(&[(pc, at)])?;
            }
        }
        self.crowded |= process.is_crowded();
        Ok(())
    }

    /// A thread has stopped at the first instruction of a handler. Returns where that is in the program.
    pub(super) fn handler(process: &Process, pc: u64) -> u64 {
        match process.place(pc) {
            Some(Place::At(point)) => point.original,
            _ => pc,
        }
    }

    /// A thread is at the first instruction of a handler: other threads, and this one later, need not stop there.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn arm(
        &mut self,
        thread: Stopped,
        process: &Shared,
        (signal, handler): (i32, u64),
    ) -> Result<()> {
        // The actions of these are lost now and then.
        if OURS.contains(&signal) || self.parked.is_some() {
            return Ok(());
        }
        let Some(known) = self.threads.get(&thread.tid()) else {
            return Ok(());
        };
        let process = process.borrow();
        known.actions.arm((signal, handler), thread, &process)?;
        if !known.actions.has_entries() {
            return Ok(());
        }
        for other in self.threads.values() {
            if let (Some(of), Some(at)) = (&other.process, other.block)
                && std::ptr::eq(&*of.borrow(), &*process)
            {
                let at = TargetAddr(at + u64::from(block::ARMED));
                process.memory().write(at, &1_u16.to_le_bytes())?;
            }
        }
        Ok(())
    }

    /// A thread is about to change or to read the action for a signal. Returns whether hodo has to see the result.
    pub(super) fn changes_action(&self, thread: Stopped, args: [u64; 6]) -> bool {
        let [signal, new, old, ..] = args;
        let signal = signal as i32;
        let Some(known) = self.threads.get(&thread.tid()) else {
            return false;
        };
        if known.actions.entry(signal).is_none() {
            return OURS.contains(&signal);
        }
        if old == 0 {
            if new != 0 {
                known.actions.forget_entry(signal);
            }
            return false;
        }
        true
    }

    /// A thread has changed or read the action for a signal.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn action_changed(
        &self,
        thread: Stopped,
        process: &Process,
        args: [u64; 6],
    ) -> Result<()> {
        let [signal, new, old, ..] = args;
        let signal = signal as i32;
        let Some(known) = self.threads.get(&thread.tid()) else {
            return Ok(());
        };
        let memory = process.memory();
        if let Some(entry) = known.actions.entry(signal) {
            let old = TargetAddr(old);
            if old.0 != 0 && memory.read_u64(old)? == entry.at {
                memory.write(old, &entry.handler.to_le_bytes())?;
            }
            if new != 0 {
                known.actions.forget_entry(signal);
            }
        }
        let mut action = [0; SIZE];
        if OURS.contains(&signal) && memory.read(TargetAddr(new), &mut action).is_ok() {
            known.actions.set(signal, action);
        }
        Ok(())
    }

    /// All threads wait: the kernel is to use the program's own handlers again.
    ///
    /// # Errors
    /// If a thread is gone.
    pub(super) fn disarm_parked(&mut self, is_wanted: impl Fn(&Shared) -> bool) -> Result<()> {
        let parked: Vec<Stopped> = (self.parked.iter().flatten())
            .map(|(&thread, _)| thread)
            .collect();
        for thread in parked {
            let Some(known) = self.threads.get(&thread.tid()) else {
                continue;
            };
            let process = known.process.as_ref().filter(|process| is_wanted(process));
            let Some(process) = process.map(Rc::clone) else {
                continue;
            };
            if let Some(group) = known.actions.disarm(thread, &process.borrow())?
                && let Some(parked) = &mut self.parked
            {
                parked.insert(thread, group);
            }
        }
        Ok(())
    }
}
