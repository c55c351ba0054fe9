//! Which debuggers the user knows of, and who has asked to be traced.

use hodo_ptrace::processes::named;
use rustc_hash::FxHashSet;

/// What is known of debuggers.
#[derive(Debug, Default)]
pub(super) struct Tracers {
    /// Those of which the user knows.
    told: FxHashSet<i32>,
    /// Threads that have asked to be traced by their parent, which is hodo.
    asked: FxHashSet<i32>,
}

impl Tracers {
    /// A thread has ended.
    pub(super) fn ended(&mut self, tid: i32) {
        self.told.remove(&tid);
        self.asked.remove(&tid);
    }

    /// A thread asks to be traced by its parent, which is hodo. Returns whether it does so for the first time.
    pub(super) fn asks(&mut self, tid: i32) -> bool {
        self.asked.insert(tid)
    }

    /// Tells the user that a process is left to a debugger. Once for each debugger: strace first traces some of its own
    /// children, to find out what the kernel can do.
    pub(super) fn tell(&mut self, pid: i32, tracer: i32) {
        if self.told.insert(tracer) {
            warn_user!(
                "hodo: process {} is traced by process {}: it is not observed any more, nor is what that traces later",
                named(pid),
                named(tracer)
            );
        }
    }
}
