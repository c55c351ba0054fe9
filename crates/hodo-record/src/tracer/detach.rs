//! Detaches: restores the code of every followed process, leads its threads out of our memory, unmaps that memory, and
//! lets the threads run on.

mod unwinders;

use hodo_follow::CAUSED;
use hodo_inject::leave;
use hodo_inject::site_writer;
use hodo_inject::step_out;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::arch;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::stopping::after;
use super::stopping::{Halted, exists};
use super::{SharedSpace, Thread, Tracer, guarded};
use crate::reserve;
use hodo_ptrace as ptrace;
use hodo_ptrace::Memory;
use hodo_ptrace::Report;
use hodo_ptrace::Stopped;
use hodo_ptrace::maps;

/// How long threads run before it is checked whether they have left, at most.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest time that they run before it is tried again to restore their stacks, if trying does not take longer.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// How long threads may take to leave places from which they cannot be moved.
pub(super) const LEAVING: Duration = Duration::from_secs(3);
/// How many times this is checked at least: a slow machine manages few checks in that time.
const TRIES_TO_LEAVE: u32 = 100;
/// How many times detaching is tried.
const TRIES: u32 = 3;

impl Tracer<'_> {
    /// Lets all followed threads run on without hodo. Reports all failures; each process gets its code back.
    pub(super) fn detach(&mut self) {
        reserve::give_back();
        // From here on, nothing else stops threads.
        self.stopping += 1;
        for tid in self.threads.keys().copied().collect::<Vec<i32>>() {
            // The log may be on a full disk. That is no reason to stay.
            let _ = guarded(|| self.tell_name(tid));
        }
        // What an error or a panic has prevented is done in another try.
        for _ in 0..TRIES {
            match guarded(|| self.let_all_go()) {
                Ok(()) => break,
                Err(error) => {
                    self.unfinished = true;
                    warn_user!("hodo: detaching: {error:#}");
                }
            }
        }
        for thread in std::mem::take(&mut *self.threads).into_values() {
            let Some(space) = &thread.space else {
                continue;
            };
            // Its threads may be running: that is better than code that nobody will ever restore.
            if let Err(error) = guarded(|| site_writer::revert(thread.pid, &space.borrow()))
                && exists(thread.pid)
            {
                self.unfinished = true;
                warn_user!(
                    "hodo: the code of process {} stays changed: {error:#}",
                    thread.pid
                );
            }
        }
    }

    /// A thread that was not resumed after its stop would never stop again: makes it do what it was about to do, and
    /// stop first.
    fn release_dealt(&mut self) -> Result<()> {
        while let Some(report) = self.dealing.pop() {
            match release(report) {
                Err(error) if !ptrace::is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn let_all_go(&mut self) -> Result<()> {
        self.release_dealt()?;
        let all: BTreeSet<i32> = self.threads.keys().copied().collect();
        let mut halted = self.stop(&all)?;
        let mut done = Vec::new();
        // The remaining threads may make others in the meantime, perhaps with memory of their own.
        while let Some((&tid, space)) =
            (self.threads.iter()).find_map(|(tid, thread)| Some((tid, thread.space.clone()?)))
        {
            let of_space = |thread: &Thread| {
                let own = thread.space.as_ref();
                own.is_some_and(|own| Rc::ptr_eq(own, &space))
            };
            let left = guarded(|| self.leave(&space, &mut halted));
            if left.is_err()
                && let Ok(space) = space.try_borrow()
            {
                // At least the code.
                let _ = guarded(|| site_writer::revert(tid, &space));
            }
            // In a process that was killed in the meantime nothing of ours is left, even if something failed because of
            // that.
            let mut threads = self.threads.iter();
            let is_there = threads.any(|(&tid, thread)| of_space(thread) && exists(tid));
            if let Err(error) = left
                && !ptrace::is_gone(&error)
                && is_there
            {
                self.unfinished = true;
                let text = format!("detaching: {error:#}");
                warn_user!("hodo: {tid}: {text}");
                let _ = self.remark(tid, &text);
            }
            let threads = self.threads.extract_if(|_, thread| of_space(thread));
            done.extend(threads);
            for (tid, _) in done.iter().filter(|(_, thread)| of_space(thread)) {
                let _ = ptrace::let_go(*tid);
            }
        }
        for &tid in self.threads.keys() {
            let _ = ptrace::let_go(tid);
        }
        self.threads.clear();
        for (_, thread) in &done {
            let Some(number) = thread.tcb.filter(|_| thread.task != 0) else {
                continue;
            };
            self.lost += self.session.events.lost(number);
            self.unshadowed += self.session.events.unshadowed(number);
            self.bad_frames(thread, number)?;
        }
        Ok(())
    }

    /// The stopped threads of an address space.
    pub(super) fn stopped_in(&self, space: &SharedSpace, halted: &Halted) -> BTreeSet<Stopped> {
        let own = |thread: &Thread| {
            let own = thread.space.as_ref();
            own.is_some_and(|own| Rc::ptr_eq(own, space))
        };
        let all = self.threads.iter().filter(|(_, thread)| own(thread));
        all.filter_map(|(tid, _)| halted.get_key_value(tid))
            .map(|(&stopped, _)| stopped)
            .collect()
    }

    /// Lets stopped threads run until none is switching static keys.
    fn wait_for_keys(&mut self, space: &SharedSpace, halted: &mut Halted) -> Result<()> {
        let begun = Instant::now();
        loop {
            let own = self.stopped_in(space, halted);
            let Some(&stopped) = own.first() else {
                return Ok(());
            };
            let tid = stopped.tid();
            let memory = stopped.memory()?;
            if !space.borrow().is_switching_keys(tid, &memory) {
                return Ok(());
            }
            if begun.elapsed() > LEAVING {
                space.borrow_mut().let_keys_go();
                let text =
                    "a thread does not finish switching static keys: tracepoints stay switched on";
                return self.remark(tid, text);
            }
            let mut late = after(PAUSE);
            self.run_on(&own, halted, || {
                late() || !space.borrow().is_switching_keys(tid, &memory)
            })?;
        }
    }

    /// Makes threads leave the code that leads from the program to ours or back, which is about to disappear. A thread
    /// that does not leave stays where it is after a while. The code is restored nevertheless, because patches that
    /// stay behind would end the program at its next breakpoint.
    pub(super) fn all_come_off(&mut self, halted: &mut Halted, space: &SharedSpace) -> Result<()> {
        let begun = Instant::now();
        loop {
            let own = self.stopped_in(space, halted);
            let mut stays = None;
            for &stopped in &own {
                if !step_out::come_off(stopped, space)? {
                    stays = Some(stopped.tid());
                }
            }
            let Some(tid) = stays else {
                return Ok(());
            };
            if begun.elapsed() > LEAVING {
                let why = "this thread does not leave code that leads into hodo's, which is being removed";
                return self.remark(tid, why);
            }
            self.run_on(&own, halted, after(Duration::from_millis(1)))?;
        }
    }

    /// Why hooks cannot be removed, if a thread is between two instructions that lead to one.
    pub(super) fn coming(
        &self,
        own: &BTreeSet<Stopped>,
        space: &SharedSpace,
    ) -> Option<&'static str> {
        let comes = |stopped: &Stopped| {
            let regs = stopped.regs();
            regs.is_ok_and(|regs| space.borrow().is_in_hook(regs.pc()))
        };
        let is_there = |stopped: &&Stopped| self.threads.contains_key(&stopped.tid());
        let mut own = own.iter().filter(is_there);
        own.any(comes)
            .then_some("a thread is about to enter hodo's code")
    }

    /// Restores an address space. Its threads stay stopped.
    pub(super) fn leave(&mut self, space: &SharedSpace, halted: &mut Halted) -> Result<()> {
        self.wait_for_keys(space, halted)?;
        self.all_come_off(halted, space)?;
        let Some(stopped) = self.stopped_in(space, halted).pop_first() else {
            return Ok(());
        };
        let tid = stopped.tid();
        let pid = self.threads[&tid].pid;
        let memory = stopped.memory()?;
        // The hooks stay as long as they are needed by unwinders on their way through frames with stubs.
        site_writer::revert(tid, &space.borrow())?;
        // The limits are lowered only once, and hodo no longer holds any static keys.
        space.borrow_mut().is_reverted();
        let begun = Instant::now();
        // A hodo that only clears is in no hurry.
        let leaving = LEAVING * if self.clearing { 2 } else { 1 };
        let mut pause = Duration::from_micros(100);
        let mut tries = 0u32;
        let own = loop {
            // The set changes, since threads are made and end while others run.
            let own = self.stopped_in(space, halted);
            let Some(first) = own.first() else {
                return Ok(());
            };
            for stopped in &own {
                if let Some(thread) = self.threads.get_mut(&stopped.tid()) {
                    // Before any thread runs, because the code is already restored; and in each round, because signals
                    // may have come in the meantime.
                    thread.contexts.leave();
                }
            }
            let settling = Instant::now();
            let maps = maps::read(first.tid())?;
            let left = leave::settle(&own, &memory, &maps, space, leave::Unwinding::GoesOn)?;
            let coming = self.coming(&own, space);
            let Some(reason) = left.as_ref().map(|left| left.reason).or(coming) else {
                break own;
            };
            let waited = begun.elapsed();
            if waited > leaving && (tries >= TRIES_TO_LEAVE || waited > leaving * 10) {
                if let Some(left) = left.filter(|left| !left.unwinds && coming.is_none()) {
                    strip(&own, &left, &memory, space)?;
                }
                bail!(
                    "{reason}: the memory of hodo stays mapped in process {pid}; its code is restored, and it runs on"
                );
            }
            // The program must not stand still only because this is tried often.
            pause = pause.max(settling.elapsed() * 2);
            // Now and then all threads may run, since others may wait for them.
            tries += 1;
            match tries % 4 {
                0 => self.run_on(&own, halted, after(pause))?,
                _ => self.run_until_unwinding(&own, space, halted, pause)?,
            }
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        };
        let Some(&worker) = own.first() else {
            return Ok(());
        };
        // The rest is done, and there may be other code by now.
        site_writer::remove_hooks(&memory, &space.borrow())?;
        leave::restored(worker.tid(), &memory, &space.borrow())?;
        for stopped in &own {
            match stopped.set_block(0, space.borrow().scratch_page(), 0) {
                Err(error) if !ptrace::is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        self.forget_words(space);
        let maps = maps::read(worker.tid())?;
        let group = leave::unmap(worker, &memory, &maps, &mut space.borrow_mut())?;
        halted.insert(worker, group);
        Ok(())
    }
}

/// Some threads may still use our memory, which therefore stays. Nothing else leads there any more, and the other
/// threads get back the register that leads to their control block.
fn strip(
    own: &BTreeSet<Stopped>,
    left: &leave::Left,
    memory: &Memory,
    space: &SharedSpace,
) -> Result<()> {
    site_writer::remove_hooks(memory, &space.borrow())?;
    for stopped in own.difference(&left.threads) {
        match stopped.set_block(0, space.borrow().scratch_page(), 0) {
            Err(error) if !ptrace::is_gone(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Makes a stopped thread do what it was about to do, and stop first.
fn release(report: Report) -> Result<()> {
    let Some(stopped) = report.stopped() else {
        return Ok(());
    };
    let mut signal = 0;
    if report.event() == 0 {
        let info = stopped.siginfo()?;
        // The report may stand for another signal than that of the stop: one that was waiting.
        signal = info.si_signo;
        if CAUSED.contains(&signal) && signal != libc::SIGSYS && info.si_code > 0 {
            // The instruction is executed again, when our breakpoint is gone.
            let mut regs = stopped.regs()?;
            let mut code = arch::BREAKPOINT.map(|_| 0);
            if signal == libc::SIGTRAP
                && arch::is_breakpoint(&info)
                && (stopped.memory()?)
                    .read(TargetAddr(regs.breakpoint()), &mut code)
                    .is_ok()
                && code == arch::BREAKPOINT
            {
                regs.set_pc(regs.breakpoint());
                stopped.set_regs(&regs)?;
            }
            signal = 0;
        }
    }
    stopped.interrupt()?;
    stopped.cont(signal)
}
