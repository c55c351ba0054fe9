//! Delivers signals that interrupt our code. See [`hodo_inject::context`].

use anyhow::Result;

use super::{SharedSpace, Tracer};
use hodo_follow::CAUSED;
use hodo_inject::context::{self, Place, Turn};
use hodo_inject::space::AppPoint;
use hodo_inject::step_out;
use hodo_ptrace as ptrace;
use hodo_ptrace::arch;
use hodo_ptrace::{Regs, Stopped};

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Whether the signal is in the set on this line of `/proc/TID/status`.
pub(super) fn is_in(tid: i32, key: &str, signal: i32) -> bool {
    ptrace::status(tid, key)
        .and_then(|set| u64::from_str_radix(&set, 16).ok())
        .is_some_and(|set| set & bit(signal) != 0)
}

impl Tracer<'_> {
    /// Lets a stopped thread run, with a signal or 0.
    pub(super) fn go(&mut self, stopped: Stopped, signal: i32) -> Result<()> {
        let tid = stopped.tid();
        match self.threads.get(&tid) {
            Some(thread) if thread.contexts.is_watched() || thread.is_seen() => {
                stopped.cont_to_call(signal)
            }
            _ => stopped.cont(signal),
        }
    }

    /// A thread has stopped as if on request. If it is at the first instruction of a handler, where it had to stop,
    /// continues from there. Returns whether that was the case.
    pub(super) fn is_in_handler(&mut self, stopped: Stopped) -> Result<bool> {
        let tid = stopped.tid();
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Ok(false);
        };
        let Some((place, real)) = thread.contexts.delivering.take() else {
            return Ok(false);
        };
        thread.contexts.entered(stopped, place, real)?;
        self.go(stopped, 0)?;
        Ok(true)
    }

    /// Delivers a signal that our code has not caused.
    pub(super) fn deliver(
        &mut self,
        stopped: Stopped,
        signal: i32,
        space: &SharedSpace,
    ) -> Result<()> {
        let tid = stopped.tid();
        let regs = stopped.regs()?;
        let place = context::place(&mut space.borrow_mut(), &regs);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.contexts.take_held(stopped, signal)?;
        }
        if self.leaves_core(tid, signal) {
            return self.end_with_core(stopped, signal, space, place);
        }
        let Some(thread) = self.threads.get_mut(&tid) else {
            return stopped.cont(signal);
        };
        if place == Place::Program {
            thread.contexts.is_delivered();
            return self.go(stopped, signal);
        }
        if !is_in(tid, "SigCgt:", signal) {
            // What the process leaves, perhaps a core file, then shows an address of the program.
            if let Place::At(point) = place
                && !is_in(tid, "SigIgn:", signal)
                && CAUSED.contains(&signal)
                // It survives the signal.
                && !hodo_ptrace::is_first(tid)
            {
                let mut regs = regs;
                regs.set_pc(point.original);
                stopped.set_regs(&regs)?;
                let left = point.probed.then_some(Turn::Left(point.original));
                self.turn(space, left);
            }
            return self.go(stopped, signal);
        }
        let info = stopped.siginfo()?;
        match place {
            Place::At(point) => {
                thread.contexts.is_delivered();
                thread.contexts.delivering = Some((point, regs.pc()));
                stopped.enter_handler(signal)
            }
            // If one of our instructions faults, it does so again.
            _ if info.si_code > 0 && CAUSED.contains(&signal) => self.go(stopped, signal),
            _ => self.deliver_after_our_code(stopped, signal, &regs, space),
        }
    }

    /// Delivers a signal to a thread that is in the middle of our code, after the thread has finished that code.
    fn deliver_after_our_code(
        &mut self,
        stopped: Stopped,
        signal: i32,
        regs: &Regs,
        space: &SharedSpace,
    ) -> Result<()> {
        let tid = stopped.tid();
        if !arch::INTERPRETS {
            return self.deliver_after_steps(stopped, signal, regs, space);
        }
        let ahead = context::run_ahead(stopped, &mut space.borrow_mut(), regs);
        match ahead {
            Ok(Some(regs)) => return self.deliver_here(stopped, signal, &regs, space),
            Err(error) if ptrace::is_gone(&error) => return Err(error),
            // If memory cannot be written, the thread itself meets that.
            Ok(None) | Err(_) => {}
        }
        let Some(thread) = self.threads.get_mut(&tid) else {
            return stopped.cont(signal);
        };
        let Some(time) = thread.contexts.hold(stopped, signal)? else {
            return self.go(stopped, signal);
        };
        // It stops before it makes a system call, and does so only after the signal was sent: no call of the program
        // can tell that it comes late.
        stopped.cont_to_call(0)?;
        std::thread::sleep(time);
        ptrace::send(tid, signal)
    }

    /// Delivers a signal to a thread that was led out of our code.
    fn deliver_here(
        &mut self,
        stopped: Stopped,
        signal: i32,
        regs: &Regs,
        space: &SharedSpace,
    ) -> Result<()> {
        let place = context::place(&mut space.borrow_mut(), regs);
        let Some(thread) = self.threads.get_mut(&stopped.tid()) else {
            return stopped.cont(signal);
        };
        thread.contexts.is_delivered();
        let Place::At(point) = place else {
            return self.go(stopped, signal);
        };
        thread.contexts.delivering = Some((point, regs.pc()));
        stopped.enter_handler(signal)
    }

    /// Delivers a signal to a thread that is in the middle of our code, after single steps: they are breakpoints here,
    /// so nothing stays in the thread if hodo is killed meanwhile.
    fn deliver_after_steps(
        &mut self,
        stopped: Stopped,
        signal: i32,
        regs: &Regs,
        space: &SharedSpace,
    ) -> Result<()> {
        let info = stopped.siginfo()?;
        let announces = space.borrow().is_announcing(regs.pc());
        let is_out =
            |regs: Regs| Ok(context::place(&mut space.borrow_mut(), &regs) != Place::Between);
        step_out::stepping(stopped, || step_out::steps_until(stopped, space, is_out))?;
        if announces {
            // No signal could stop it for that.
            self.announced(stopped, space)?;
        }
        stopped.set_siginfo(&info)?;
        let regs = stopped.regs()?;
        self.deliver_here(stopped, signal, &regs, space)
    }

    /// A thread whose system calls are watched has started or finished one.
    pub(super) fn system_call(&mut self, stopped: Stopped, space: &SharedSpace) -> Result<()> {
        let tid = stopped.tid();
        let call = stopped.call()?;
        if matches!(call, ptrace::Call::Entry { .. })
            && let Some(thread) = self.threads.get_mut(&tid)
        {
            let turns = thread
                .contexts
                .system_call(stopped, &mut space.borrow_mut())?;
            self.turn(space, turns);
        }
        self.see_call(stopped, space, call)?;
        self.go(stopped, 0)
    }

    /// A thread is about to end: it may have been killed anywhere.
    pub(super) fn exiting(&mut self, stopped: Stopped) -> Result<()> {
        let tid = stopped.tid();
        let Some(thread) = self.threads.get(&tid) else {
            return stopped.cont(0);
        };
        let space = thread.space.clone();
        self.tell_name(tid)?;
        let Some(thread) = self.threads.get(&tid) else {
            return stopped.cont(0);
        };
        if let Some(space) = space {
            let mut turns: Vec<Turn> = thread.contexts.end().collect();
            let place = context::place(&mut space.borrow_mut(), &stopped.regs()?);
            if let Place::At(AppPoint {
                original,
                probed: true,
            }) = place
            {
                turns.push(Turn::Left(original));
            }
            self.turn(&space, turns);
        }
        self.go(stopped, 0)
    }

    /// Threads did not continue from one instruction to the next: corrects counters that stand for several
    /// instructions.
    pub(super) fn turn(&mut self, space: &SharedSpace, turns: impl IntoIterator<Item = Turn>) {
        let space = space.borrow();
        let counts = &mut self.modules.probes.counts;
        for turn in turns {
            let (Turn::Left(at) | Turn::Shared(at) | Turn::Came(at)) = turn;
            let Some((file, addr)) = space.file_at(at) else {
                continue;
            };
            match turn {
                Turn::Left(_) => counts.leave(&file.path, addr),
                Turn::Shared(_) => counts.share(&file.path, addr),
                Turn::Came(_) => counts.enter(&file.path, addr),
            }
        }
    }
}
