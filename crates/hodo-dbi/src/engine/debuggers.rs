//! Debuggers that run from the cache. A process has only one tracer: what a debugger traces is left to it, and is not
//! observed from then on.
//!
//! Who has the same memory as what is left cannot run from the cache any more, either, because the program's own code
//! must be executable for that. So all of them are left. There is one exception, which is how debuggers start programs:
//! the child of `vfork` asks to be traced while its maker waits for it to execute a program. The maker cannot be left
//! as long as it waits. Until then, hodo *lends* the memory: the code is executable. Other threads go on in the cache.
//! If one leaves it, hodo does not notice that before the memory is its own again.

use std::rc::Rc;

use anyhow::Result;
use hodo_isa::native::asm::SYSTEM_CALL;
use hodo_ptrace::{Regs, Stopped, numbers_of, status};

use super::{Engine, Shared, Thread};

impl Engine {
    /// A thread is about to call `ptrace`; its registers are those before the call. If that needs a process that is
    /// observed, leaves the process. Returns whether the thread was dealt with: it has been let go, or comes here
    /// again.
    ///
    /// # Errors
    /// What could not be done.
    pub(super) fn leaves_to_debugger(
        &mut self,
        thread: Stopped,
        process: &Shared,
        regs: &Regs,
        args: [u64; 6],
    ) -> Result<bool> {
        let Some(own) = self.threads.get(&thread.tid()).map(|known| known.pid) else {
            return Ok(false);
        };
        match args[0] as libc::c_uint {
            libc::PTRACE_TRACEME => {
                let parent = status(own, "PPid:").and_then(|parent| parent.parse().ok());
                let parent = parent.unwrap_or(0);
                if parent == std::process::id().cast_signed() {
                    return self.asks_hodo(thread, *regs);
                }
                thread.set_regs(regs)?;
                self.tracers.tell(own, parent);
                self.leave_to_parent(thread, process)?;
                Ok(true)
            }
            libc::PTRACE_ATTACH | libc::PTRACE_SEIZE => {
                let number = args[1] as i32;
                let is_meant = |&tid: &i32| tid == number || numbers_of(tid).contains(&number);
                let target = match self.threads.contains_key(&number) {
                    true => Some(number),
                    false => self.threads.keys().copied().find(is_meant),
                };
                let target = target.and_then(|target| self.threads.get(&target));
                // The kernel refuses threads of the own process. A thread that waits for this one cannot be left.
                let is_possible = |target: &&Thread| target.pid != own && !self.is_awaited(thread);
                let target = target.filter(is_possible);
                let Some((pid, Some(memory))) =
                    target.map(|target| (target.pid, target.process.clone()))
                else {
                    return Ok(false);
                };
                thread.set_regs(regs)?;
                self.tracers.tell(pid, own);
                self.leave_memory(thread, &memory).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// A thread asks to be traced by its parent, which is hodo instead of who has started hodo. It gets the kernel's
    /// answer, and stays observed: nobody waits for its stops.
    fn asks_hodo(&mut self, thread: Stopped, mut regs: Regs) -> Result<bool> {
        if !self.tracers.asks(thread.tid()) {
            // The kernel refuses it the second time, too.
            return Ok(false);
        }
        regs.set_result(0);
        regs.set_pc(regs.pc() + SYSTEM_CALL.len() as u64);
        thread.set_regs(&regs)?;
        self.go(thread, 0)?;
        Ok(true)
    }

    /// A thread before an instruction asks to be traced by its parent: leaves it, and all that have to be left with it.
    fn leave_to_parent(&mut self, thread: Stopped, process: &Shared) -> Result<()> {
        if self.is_awaited(thread) {
            return self.lend(thread, process);
        }
        if self.shares_memory(thread, process) {
            return self.leave_memory(thread, process);
        }
        self.take(thread)?;
        self.leave_child(thread, process)
    }

    /// Whether a thread's maker waits for it.
    fn is_awaited(&self, thread: Stopped) -> bool {
        let known = self.threads.get(&thread.tid());
        known.is_some_and(|known| known.spawning)
    }

    /// Whether other threads have the memory of this one.
    fn shares_memory(&self, thread: Stopped, memory: &Shared) -> bool {
        self.threads.iter().any(|(&tid, known)| {
            let process = known.process.as_ref();
            tid != thread.tid() && process.is_some_and(|other| Rc::ptr_eq(other, memory))
        })
    }
}
