//! System calls about which the program's functions ask first: they would affect hodo's memory, or the register that
//! hodo uses.

use std::collections::BTreeSet;
use std::rc::Rc;

use anyhow::{Context, Result};
use hodo_ptrace::{Asked, Stopped, TargetAddr};

use super::stopping::Halted;
use super::{SharedSpace, Thread, Tracer};

impl Tracer<'_> {
    /// A thread is about to make such a call in this function.
    pub(super) fn asked(
        &mut self,
        stopped: Stopped,
        function: u64,
        space: &SharedSpace,
    ) -> Result<()> {
        let mut regs = stopped.regs()?;
        let done = match regs.asked() {
            Asked::LockAll { flags } => hodo_inject::lock::all(stopped, flags, &space.borrow())?,
            // The program has not set it yet: otherwise nothing of the process would be recorded. The kernel refuses
            // bad addresses.
            Asked::GetBase { to } => (stopped.memory()?)
                .write(TargetAddr(to), &0u64.to_le_bytes())
                .is_ok(),
            Asked::SetBase => return self.takes_base(stopped, function, space),
        };
        regs.answer(done);
        stopped.set_regs(&regs)?;
        self.go(stopped, 0)
    }

    /// The program wants the register: the recording of its process ends first.
    fn takes_base(&mut self, stopped: Stopped, function: u64, space: &SharedSpace) -> Result<()> {
        let tid = stopped.tid();
        let (asking, mut regs) = (stopped.regs()?, stopped.regs()?);
        // When hodo's code is gone, the thread begins the call again.
        regs.set_pc(function);
        stopped.set_regs(&regs)?;
        stopped.interrupt()?;
        stopped.cont(0)?;
        if self.parting {
            // This thread is led out together with the others, or comes here again.
            return Ok(());
        }
        self.parting = true;
        let left = self.part_from(space);
        self.parting = false;
        let (mut halted, left) = left?;
        let text = match &left {
            Ok(()) => {
                "the program sets the base of gs itself: the recording of this process ends here"
            }
            Err(_) => {
                "the program sets the base of gs, which hodo needs: the recording of this process ends here"
            }
        };
        let told = self.remark(tid, text);
        if left.is_err()
            && let Some((&stopped, _)) = halted.get_key_value(&tid)
            && stopped.regs()?.pc() == function
        {
            // The hook may still be there, and would ask again.
            let mut regs = asking;
            regs.answer(false);
            stopped.set_regs(&regs)?;
        }
        self.let_on(&mut halted);
        told.and(left)
    }

    /// Ends the recording of an address space. All of its threads are stopped afterwards.
    fn part_from(&mut self, space: &SharedSpace) -> Result<(Halted, Result<()>)> {
        let mut halted = self.stop(&self.threads_in(space))?;
        let left = self.leave(space, &mut halted);
        if left.is_ok() {
            for tid in self.threads_in(space) {
                let Some(thread) = self.threads.get_mut(&tid) else {
                    continue;
                };
                let untraced = Thread {
                    awaited: thread.awaited,
                    ..Thread::untraced(thread.pid)
                };
                let known = std::mem::replace(thread, untraced);
                self.release(&known, None)?;
            }
        }
        Ok((halted, left.context("making room for the program's own")))
    }

    /// The threads of an address space.
    fn threads_in(&self, space: &SharedSpace) -> BTreeSet<i32> {
        let own = |thread: &Thread| {
            let own = thread.space.as_ref();
            own.is_some_and(|own| Rc::ptr_eq(own, space))
        };
        let all = self.threads.iter().filter(|(_, thread)| own(thread));
        all.map(|(&tid, _)| tid).collect()
    }
}
