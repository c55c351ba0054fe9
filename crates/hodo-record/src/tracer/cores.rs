//! Core files: before a signal ends a process with a core, its code and stacks are changed to what they would be
//! without hodo, so that debuggers can follow its frames.

use hodo_inject::site_writer;
use std::collections::BTreeSet;
use std::fs;
use std::rc::Rc;

use anyhow::Result;

use super::delivery::is_in;
use super::{SharedSpace, Tracer};
use hodo_inject::context::{Place, Turn};
use hodo_inject::leave::{self, Unwinding};
use hodo_ptrace as ptrace;
use hodo_ptrace::Stopped;
use hodo_ptrace::maps;
use hodo_ptrace::stops::PATIENCE;

/// Signals that by default end the process with a core: signal(7).
const SIGNALS: [i32; 10] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
];

impl Tracer<'_> {
    /// Whether this signal ends the thread's process with a core file.
    pub(super) fn leaves_core(&self, tid: i32, signal: i32) -> bool {
        SIGNALS.contains(&signal)
            && !is_in(tid, "SigCgt:", signal)
            && !is_in(tid, "SigIgn:", signal)
            && !hodo_ptrace::is_first(tid)
            && is_core_written(tid)
    }

    /// Ends a thread's process by a signal that leaves a core file. Anything that cannot be restored is left as it is.
    pub(super) fn end_with_core(
        &mut self,
        stopped: Stopped,
        signal: i32,
        space: &SharedSpace,
        place: Place,
    ) -> Result<()> {
        let tid = stopped.tid();
        if (self.dying.as_ref()).is_some_and(|dying| Rc::ptr_eq(dying, space)) {
            // The core for another thread's signal is being prepared. This thread stays where it is: it will not run
            // again.
            stopped.interrupt()?;
            return stopped.cont(0);
        }
        let info = stopped.siginfo()?;
        if let Place::At(point) = place {
            let mut regs = stopped.regs()?;
            regs.set_pc(point.original);
            stopped.set_regs(&regs)?;
            let left = Turn::Left(point.original);
            self.turn(space, point.probed.then_some(left));
        }
        // Only one process at a time has its threads stopped for this: if another one ends in the meantime, its core is
        // not restored.
        let others = match self.dying {
            Some(_) => None,
            None => self.others_in(tid, space),
        };
        let Some(others) = others else {
            return self.go(stopped, signal);
        };
        self.dying = Some(Rc::clone(space));
        let halted = self.stop_within(&others, Some(PATIENCE));
        self.dying = None;
        let (mut halted, all) = halted?;
        if all {
            // Threads that were made in the meantime may belong to another process.
            let mut threads = self.stopped_in(space, &halted);
            threads.insert(stopped);
            if let Err(error) = put_in_order(stopped, &threads, space)
                && !ptrace::is_gone(&error)
            {
                // The signal matters more than a remark that cannot be written.
                let _ = self.remark(tid, &format!("preparing the core file: {error:#}"));
            }
        }
        // Steps may have replaced the signal's stop.
        let restored = stopped.set_siginfo(&info);
        let gone = self.go(stopped, signal);
        self.let_on(&mut halted);
        restored.and(gone)
    }

    /// The other threads of an address space; `None` if they belong to several processes.
    fn others_in(&self, tid: i32, space: &SharedSpace) -> Option<BTreeSet<i32>> {
        let pid = self.threads.get(&tid)?.pid;
        let mut others = BTreeSet::new();
        for (&other, thread) in self.threads.iter() {
            if (thread.space.as_ref()).is_some_and(|own| Rc::ptr_eq(own, space)) {
                if thread.pid != pid {
                    return None;
                }
                others.insert(other);
            }
        }
        others.remove(&tid);
        Some(others)
    }
}

/// Whether the kernel writes cores of this process at all: core(5).
fn is_core_written(tid: i32) -> bool {
    /// `ELF_EXEC_PAGESIZE`: the kernel makes no smaller ones.
    const LEAST: u64 = 4096;
    let pattern = fs::read("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let limit = hodo_ptrace::limits::core(tid);
    match pattern.first() {
        // A program that reads cores gets them whatever the limit is, but a limit of 1 stands for its own cores.
        Some(b'|') => limit != 1,
        _ => limit >= LEAST,
    }
}

/// Restores the code of a process, all threads of which are stopped, and replaces the return addresses into stubs by
/// the real ones.
fn put_in_order(stopped: Stopped, threads: &BTreeSet<Stopped>, space: &SharedSpace) -> Result<()> {
    let tid = stopped.tid();
    let memory = stopped.memory()?;
    site_writer::revert(tid, &space.borrow())?;
    space.borrow_mut().is_reverted();
    let maps = maps::read(tid)?;
    // Nobody executes these hooks any more, even if a thread is about to enter one.
    leave::settle(threads, &memory, &maps, space, Unwinding::Over)?;
    site_writer::remove_hooks(&memory, &space.borrow())
}
