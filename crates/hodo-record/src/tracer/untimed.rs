//! Threads that may no longer read the time counter (`PR_SET_TSC`, seccomp's strict mode).
//!
//! If one of our instructions reads it, it faults. At the first fault, our code is changed: it takes the time from the
//! control block, where hodo writes it. Emulating each faulting instruction would not be enough: if a program blocks or
//! ignores the signal, the kernel removes its handler before hodo learns of it.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;

use super::{SharedSpace, Tracer};
use hodo_inject::space::Moved;
use hodo_inject::untimed::{INSIDE_TIME, take_time, takes_time};
use hodo_ptrace::Memory;
use hodo_ptrace::Stopped;

/// How long the other threads may take to stop.
const STOPPING: Duration = Duration::from_secs(1);

impl Tracer<'_> {
    /// If our code has faulted because it may not read the time counter, makes it continue without. Returns whether
    /// that was the case.
    pub(super) fn without_counter(
        &mut self,
        stopped: Stopped,
        space: &SharedSpace,
    ) -> Result<bool> {
        let tid = stopped.tid();
        let mut regs = stopped.regs()?;
        let islands = space.borrow().islands();
        if !islands.iter().any(|island| island.contains(regs.pc()))
            || stopped.siginfo()?.si_code <= 0
        {
            return Ok(false);
        }
        // The program's own instruction, which hodo has moved, faults as it does in its place.
        let moved = Moved::of(&mut space.borrow_mut());
        if moved.app_point(regs.pc()).is_some() {
            return Ok(false);
        }
        let memory = stopped.memory()?;
        // Another thread was first.
        if takes_time(&regs, &memory)? {
            return Ok(true);
        }
        if !regs.read_counter(&memory)? {
            return Ok(false);
        }
        let known = space.borrow_mut().set_untimed();
        if !known && self.take_time(stopped, &memory, space)? {
            let text = "this process has forbidden itself the time counter: from here on, hodo keeps the time for it, to the \
                        millisecond, and for a few seconds at most";
            self.remark(tid, text)?;
            return Ok(true);
        }
        stopped.set_regs(&regs)?;
        Ok(true)
    }

    /// Changes our code in an address space while no other thread runs it. Returns whether that was possible.
    fn take_time(
        &mut self,
        stopped: Stopped,
        memory: &Memory,
        space: &SharedSpace,
    ) -> Result<bool> {
        let tid = stopped.tid();
        let waits = |tid| {
            self.threads
                .values()
                .any(|thread| thread.awaited == Some(tid))
        };
        let shares = self.threads.iter().filter(|(_, thread)| {
            thread
                .space
                .as_ref()
                .is_some_and(|other| Rc::ptr_eq(other, space))
        });
        let others: BTreeSet<i32> = shares
            .map(|(&other, _)| other)
            .filter(|&other| other != tid && !waits(other) && !self.is_first_and_ended(other))
            .collect();
        let (halted, whole) = match others.is_empty() {
            true => (super::stopping::Halted::new(), true),
            false => self.stop_within(&others, Some(STOPPING))?,
        };
        let done = match whole {
            true => take_time(memory, &space.borrow()),
            false => Ok(BTreeSet::new()),
        };
        // Before any thread reads it.
        self.session.events.tell_time_to(self.next_tcb);
        for (&other, &group) in &halted {
            let back = || -> Result<()> {
                let mut regs = other.regs()?;
                let start = regs.pc().wrapping_sub(INSIDE_TIME);
                if done.as_ref().is_ok_and(|places| places.contains(&start)) {
                    regs.set_pc(start);
                    other.set_regs(&regs)?;
                }
                Ok(())
            };
            // A thread may be killed at any time; its end is reported separately.
            let _ = back();
            let _ = match group {
                true => other.listen(),
                false => self.go(other, 0),
            };
        }
        Ok(!done?.is_empty())
    }
}
