//! System calls about which the program's functions ask first: they would affect hodo's memory, or the register that
//! hodo uses.

use std::collections::BTreeSet;
use std::rc::Rc;

use anyhow::Result;
use hodo_ptrace::{Asked, Regs, Stopped, TargetAddr, is_gone};

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
            Asked::GetBase { to } => {
                let base = 0u64.to_le_bytes();
                stopped.store(TargetAddr(to), &base) == base.len()
            }
            Asked::SetBase => return self.takes_base(stopped, function, space),
        };
        regs.answer(done);
        stopped.set_regs(&regs)?;
        self.go(stopped, 0)
    }

    /// The program wants the register: the recording of its process ends first.
    fn takes_base(&mut self, stopped: Stopped, function: u64, space: &SharedSpace) -> Result<()> {
        let tid = stopped.tid();
        let (mut refusing, mut regs) = (stopped.regs()?, stopped.regs()?);
        refusing.refuse_base();
        if self.is_lent(tid, space) {
            let text = "a process that shares its memory sets the base of gs: this call fails";
            stopped.set_regs(&refusing)?;
            let told = self.remark(tid, text);
            return self.go(stopped, 0).and(told);
        }
        // When hodo's code is gone, the thread begins the call again. While threads are being stopped anyway, it is
        // stopped there like the others; if they go on as before, it comes here again.
        regs.set_pc(function);
        stopped.set_regs(&regs)?;
        stopped.interrupt()?;
        stopped.cont(0)?;
        if self.stopping > 0 {
            return Ok(());
        }
        let text = match self.part_from(space, (tid, function), &refusing) {
            Ok(()) => {
                "the program sets the base of gs itself: the recording of this process ends here"
                    .to_owned()
            }
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => format!(
                "the program sets the base of gs, which hodo cannot give back: this call fails, and the recording of \
                 this process ends here: {error:#}"
            ),
        };
        // The thread is running: nobody may take this error for one of its stop.
        let _ = self.remark(tid, &text);
        Ok(())
    }

    /// Ends the recording of an address space, and lets its threads go on. If that fails, the thread that is about to
    /// make its call in this function goes on with these registers.
    fn part_from(
        &mut self,
        space: &SharedSpace,
        (tid, function): (i32, u64),
        refusing: &Regs,
    ) -> Result<()> {
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
                // The log may be on a full disk.
                let _ = self.release(&known, None);
            }
        } else if let Some((&stopped, _)) = halted.get_key_value(&tid)
            && stopped.regs().is_ok_and(|regs| regs.pc() == function)
        {
            let _ = stopped.set_regs(refusing);
        }
        self.let_on(&mut halted);
        left
    }

    /// Whether another process uses an address space, too, or waits for this one (vfork).
    fn is_lent(&self, tid: i32, space: &SharedSpace) -> bool {
        let pid = self.threads.get(&tid).map(|thread| thread.pid);
        let threads = self.threads_in(space);
        let pids = threads.iter().filter_map(|tid| self.threads.get(tid));
        self.is_awaited(tid)
            || pids
                .map(|thread| Some(thread.pid))
                .any(|other| other != pid)
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
