//! Debuggers that run from the cache. A process has only one tracer: what a debugger traces is left to it, and is not
//! observed from then on.

use std::rc::Rc;

use anyhow::Result;
use hodo_ptrace::processes::named;
use hodo_ptrace::{Regs, Stopped, numbers_of, status};

use crate::engine::{Engine, Shared};
use crate::native::system_call;

impl Engine {
    /// A thread is about to call `ptrace`; its registers are those in front of the call. If that needs a process that is
    /// observed, leaves the process. Returns whether the thread was dealt with: it has been let go, or comes here again.
    ///
    /// # Errors
    /// What could not be done.
    pub(crate) fn leaves_to_debugger(
        &mut self,
        thread: Stopped,
        process: &Shared,
        regs: &Regs,
        args: [u64; 6],
    ) -> Result<bool> {
        let tid = thread.tid();
        let Some(own) = self.threads.get(&tid).map(|known| known.pid) else {
            return Ok(false);
        };
        match args[0] as libc::c_uint {
            // The parent of the first process is hodo.
            libc::PTRACE_TRACEME if own != self.program.first && self.is_alone(tid) => {
                thread.set_regs(regs)?;
                self.take(thread)?;
                let parent = status(own, "PPid:").and_then(|parent| parent.parse().ok());
                tell(own, parent.unwrap_or(0));
                self.leave_child(thread, process).map(|()| true)
            }
            libc::PTRACE_ATTACH | libc::PTRACE_SEIZE => {
                let number = args[1] as i32;
                let is_meant = |&tid: &i32| tid == number || numbers_of(tid).contains(&number);
                let target = match self.threads.contains_key(&number) {
                    true => Some(number),
                    false => self.threads.keys().copied().find(is_meant),
                };
                let pid = target.and_then(|target| Some(self.threads.get(&target)?.pid));
                let Some(pid) = pid.filter(|&pid| pid != own && self.has_own_memory(pid)) else {
                    return Ok(false);
                };
                thread.set_regs(regs)?;
                tell(pid, own);
                self.leave_process(thread, pid).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Whether no other thread has the memory of this one.
    fn is_alone(&self, tid: i32) -> bool {
        let process = |tid: i32| self.threads.get(&tid)?.process.as_ref();
        let is_same = |&&other: &&i32| {
            let both = process(other).zip(process(tid));
            both.is_some_and(|(other, own)| Rc::ptr_eq(other, own))
        };
        self.threads.keys().filter(is_same).count() == 1
    }

    /// Whether no other process has the memory of this one.
    fn has_own_memory(&self, pid: i32) -> bool {
        let mut own = self.threads.values().filter(|known| known.pid == pid);
        let Some(process) = own.next().and_then(|known| known.process.as_ref()) else {
            return false;
        };
        let mut others = self.threads.values().filter(|known| known.pid != pid);
        !others.any(|known| {
            known
                .process
                .as_ref()
                .is_some_and(|other| Rc::ptr_eq(other, process))
        })
    }

    /// Whether a thread that is about to call `vfork` is that of a debugger, as it seems: its child may ask to be traced, and
    /// then it cannot have memory that hodo needs for others.
    pub(crate) fn may_make_traced(&mut self, thread: Stopped) -> bool {
        let program = std::fs::read_link(format!("/proc/{thread}/exe")).unwrap_or_default();
        if let Some(&is_debugger) = self.debuggers.get(&program) {
            return is_debugger;
        }
        // By the name of the function that it imports.
        let name = b"\0ptrace\0";
        let content = std::fs::read(&program).unwrap_or_default();
        let is_debugger = content.windows(name.len()).any(|bytes| bytes == name);
        self.debuggers.insert(program, is_debugger);
        is_debugger
    }

    /// The child of a debugger has memory of its own, though its maker has called `vfork`: it is to find the registers that
    /// it would have. `args`: those of that call.
    pub(crate) fn restore_arguments(thread: Stopped, args: [u64; 6]) -> Result<()> {
        let mut regs = thread.regs()?;
        system_call::set_arguments(&mut regs, args);
        thread.set_regs(&regs)
    }
}

fn tell(pid: i32, tracer: i32) {
    warn_user!(
        "hodo: process {} is traced by process {}: it is not observed any more",
        named(pid),
        named(tracer)
    );
}
