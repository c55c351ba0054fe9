//! What an engine does with the threads that it follows.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Error, Result};
use hodo_follow::{Exit, Made, Policy, Program, Task, Tasks};
use hodo_isa::native::asm::SYSTEM_CALL;
use hodo_ptrace::{Report, Stopped, TargetAddr, is_ending, is_gone, look_into, stops};

use super::{Engine, Followed, Thread, lead};
use crate::native::block;
use crate::recorder::Beginning;

impl Task for Thread {
    fn process(&self) -> i32 {
        self.pid
    }

    fn mark(&self) -> Option<u64> {
        self.mark
    }

    fn as_maker(&self) -> Self {
        Self {
            pid: self.pid,
            process: self.process.clone(),
            block: self.block,
            mark: self.mark,
            resumed: self.resumed.clone(),
            call: self.call,
            blocked: self.blocked,
            actions: self.actions.clone(),
            followed: self.followed,
            ..Self::default()
        }
    }
}

impl Policy for Engine {
    type Task = Thread;

    const DONE: &'static str = "observed";

    fn tasks(&mut self) -> &mut Tasks<Thread> {
        &mut self.threads
    }

    fn program(&mut self) -> &mut Program {
        &mut self.program
    }

    fn mark_of(&self, child: Stopped) -> Result<u64> {
        let at = TargetAddr(child.block()? + block::MARK);
        // It comes from the system call that has made it.
        let call = child.regs()?.pc().wrapping_sub(SYSTEM_CALL.len() as u64);
        look_into(child, TargetAddr(call), || child.memory())?.read_u64(at)
    }

    fn look(&mut self) -> Result<bool> {
        self.make_room()?;
        self.change_marked()?;
        if self.threads.is_empty() || self.has_enough() {
            return Ok(false);
        }
        if let Some(mut limit) = self.limit.take() {
            self.reached =
                limit.next() <= Instant::now() && limit.look(self.executed_instructions());
            self.limit = Some(limit);
        }
        Ok(!self.reached)
    }

    fn next_look(&self) -> Option<Instant> {
        self.limit.as_ref().map(|limit| limit.next())
    }

    fn adopt(
        &mut self,
        child: Stopped,
        maker: Option<&Thread>,
        made: Made,
        beside: Option<Stopped>,
    ) -> Result<()> {
        let begun = self.begin_child(child, maker, made, beside);
        if begun.is_err() {
            // Whatever comes next, it comes to a stop before it executes anything.
            let unknown = || Thread::of(child.tid());
            self.threads.entry(child.tid()).or_insert_with(unknown);
            let _ = child.interrupt().and_then(|()| child.cont(0));
        }
        match begun {
            // It was killed.
            Err(error) if is_lost(child, &error) || is_ending(&error) => Ok(()),
            begun => begun,
        }
    }

    fn stops(&mut self, thread: Stopped, report: Report) -> Result<()> {
        self.end_wait(thread, report.is_asked_for())?;
        // At other events, it cannot make system calls.
        let is_place = report.event() == libc::PTRACE_EVENT_STOP;
        let known = self.threads.get_mut(&thread.tid()).filter(|_| is_place);
        if !known.is_some_and(|known| std::mem::take(&mut known.takes_back)) {
            return Ok(());
        }
        match self.process(thread) {
            Some(process) if !process.borrow().is_lent() => process.borrow_mut().take_back(thread),
            _ => Ok(()),
        }
    }

    fn executed(&mut self, thread: Stopped) -> Result<()> {
        Engine::executed(self, thread)
    }

    fn exits(&mut self, thread: Stopped) -> Result<()> {
        Engine::exits(self, thread)
    }

    fn ended(&mut self, tid: i32, known: Thread, _: Exit) -> Result<()> {
        self.tracers.ended(tid);
        if let (Some(process), Some(block)) = (&known.process, known.block) {
            process.borrow_mut().take_block(block);
            self.threads.remember(&known);
        }
        Ok(())
    }

    fn signaled(&mut self, thread: Stopped, signal: i32) -> Result<()> {
        Engine::signaled(self, thread, signal)
    }

    fn at_call(&mut self, thread: Stopped) -> Result<()> {
        Engine::at_call(self, thread)
    }

    fn asked(&mut self, thread: Stopped) -> Result<()> {
        if !self.has_entered(thread)? {
            // Perhaps nobody waits for the stop any more.
            stops::restart_call(thread)?;
        }
        let known = self.threads.get(&thread.tid());
        match self.parked {
            Some(_) if known.is_some_and(|known| !known.spawning) => self.park(thread, false),
            _ => Engine::go(self, thread, 0),
        }
    }

    fn all_stopped(&mut self, thread: Stopped) -> Result<()> {
        match self.parked {
            Some(_) => self.park(thread, true),
            None => thread.listen(),
        }
    }

    fn goes_on(&mut self, thread: Stopped) -> Result<()> {
        let child = i32::try_from(thread.event_message()?)?;
        if let Some(process) = self.process(thread)
            && process.borrow_mut().ends_loan(child)
            && let Some(known) = self.threads.get_mut(&thread.tid())
        {
            known.takes_back = true;
            // It stops before it executes anything.
            thread.interrupt()?;
        }
        Engine::go(self, thread, 0)
    }

    fn go(&mut self, thread: Stopped, signal: i32) -> Result<()> {
        Engine::go(self, thread, signal)
    }

    fn failed(&mut self, report: Report, error: Error) -> Result<()> {
        let error = match report.stopped() {
            Some(thread) if is_ending(&error) => match Engine::exits(self, thread) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            },
            _ => error,
        };
        let is_lost = |thread| is_lost(thread, &error);
        if is_gone(&error) || report.stopped().is_some_and(is_lost) {
            return Ok(());
        }
        self.stuck = report.stopped();
        Err(error)
    }

    fn failed_with(&mut self, _: Stopped, error: Error) -> Result<()> {
        Err(error)
    }
}

/// Whether something failed because a thread was killed: it is not in its stop any more, and its memory may be gone.
fn is_lost(thread: Stopped, error: &Error) -> bool {
    is_gone(error) || thread.regs().is_err_and(|error| is_gone(&error))
}

impl Engine {
    /// Begins with a new thread or process, and lets it run.
    fn begin_child(
        &mut self,
        child: Stopped,
        maker: Option<&Thread>,
        made: Made,
        beside: Option<Stopped>,
    ) -> Result<()> {
        let tid = child.tid();
        let beginning = match beside.filter(|_| !made.is_thread()) {
            None => Beginning::Thread,
            Some(maker) => match self.make_known(maker) {
                Err(error) if is_gone(&error) => Beginning::Thread,
                beginning => beginning?,
            },
        };
        let Some(maker) = maker else {
            self.threads.insert(tid, Thread::of(tid));
            return child.cont(0);
        };
        let is_forked = !made.shares_memory();
        let process = match &maker.process {
            Some(process) if is_forked => {
                let since = maker.resumed.get();
                let own = process.borrow().forked(child, maker.block, since)?;
                Some(Rc::new(RefCell::new(own)))
            }
            process => process.clone(),
        };
        let followed = match maker.followed {
            _ if is_forked && !self.follows => Followed::No,
            Followed::Always if !self.follows && !made.is_thread() => Followed::UntilOwnMemory,
            followed => followed,
        };
        // The block of a forked thread was copied.
        let block = maker.block.filter(|_| is_forked);
        let recording = match (&process, block) {
            (Some(process), Some(block)) if followed != Followed::No => {
                self.recording(tid, &process.borrow(), block, beginning)?
            }
            _ => None,
        };
        let mark = match (&process, block) {
            (Some(process), Some(block)) => Some(self.mark(&process.borrow(), block)?),
            _ => None,
        };
        let known = Thread {
            mark,
            pid: if made.is_thread() { maker.pid } else { tid },
            actions: match made.shares_handlers() {
                true => maker.actions.clone(),
                false if made.clears_handlers() => maker.actions.without_handlers(),
                false => maker.actions.copied(),
            },
            process,
            block,
            recording,
            spawning: made.is_awaited(),
            followed,
            beginning,
            blocked: maker.blocked,
            ..Thread::default()
        };
        self.threads.insert(tid, known);
        self.begin(child)
    }

    /// A thread is about to execute its first instruction.
    fn begin(&mut self, thread: Stopped) -> Result<()> {
        let Some(known) = self.threads.get_mut(&thread.tid()) else {
            return thread.cont(0);
        };
        let Some(process) = known.process.clone() else {
            return thread.cont(0);
        };
        if known.followed == Followed::No {
            return self.leave_child(thread, &process);
        }
        if known.block.is_none() {
            let block = process.borrow_mut().give_block(thread)?;
            let beginning = known.beginning;
            let recording = self.recording(thread.tid(), &process.borrow(), block, beginning)?;
            let mark = self.mark(&process.borrow(), block)?;
            if let Some(known) = self.threads.get_mut(&thread.tid()) {
                known.block = Some(block);
                known.mark = Some(mark);
                known.recording = recording;
                known.look_at_mask(thread)?;
            }
        }
        self.asked(thread)
    }

    /// A thread has stopped because it was asked to. If that is at the beginning of a handler, leads it into the cache.
    /// Returns whether it is.
    fn has_entered(&mut self, thread: Stopped) -> Result<bool> {
        let Some(known) = self.threads.get_mut(&thread.tid()) else {
            return Ok(false);
        };
        let Some(process) = known.process.clone() else {
            return Ok(false);
        };
        let Some(signal) = known.entering.take() else {
            return Ok(false);
        };
        known.look_at_mask(thread)?;
        let pc = Self::handler(&process.borrow(), thread.regs()?.pc());
        lead(thread, &process, pc)?;
        self.arm(thread, &process, (signal, pc))?;
        Ok(true)
    }
}
