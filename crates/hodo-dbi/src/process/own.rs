//! What of an address space is hodo's, and what the program sees of it.

use anyhow::Result;
use hodo_abi::Span;
use hodo_ptrace::maps::Mapping;
use hodo_ptrace::{Stopped, Syscalls, TargetAddr};

use super::{EVERYWHERE, Process};
use crate::shown::Shown;

impl Process {
    /// What the program is to read of its mappings.
    pub(crate) fn shown(&self) -> Shown {
        Shown::new(self.code.spans(), self.code.writable())
    }

    /// Whether memory of hodo is in one of these ranges.
    pub(crate) fn has_own(&self, ranges: [Span; 2]) -> bool {
        let mut own = self.cache.spans().chain(self.mapped.iter().copied());
        own.any(|own| ranges.iter().any(|range| own.overlaps(*range)))
    }

    /// Makes the program's own code executable.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn open(&self, calls: &Syscalls) -> Result<()> {
        let executable = libc::PROT_READ | libc::PROT_EXEC;
        for span in self.code.spans().all() {
            calls.mprotect(TargetAddr(span.start), span.len(), executable)?;
        }
        for span in self.code.writable().all() {
            let protection = executable | libc::PROT_WRITE;
            calls.mprotect(TargetAddr(span.start), span.len(), protection)?;
        }
        Ok(())
    }

    /// Lends the memory to a thread that does not run from the cache any more.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn lend(&mut self, thread: Stopped) -> Result<()> {
        let calls = self.calls_of(thread)?;
        self.open(&calls)?;
        calls.end()?;
        self.is_open = true;
        self.lent.insert(thread.tid());
        Ok(())
    }

    /// Whether the memory is lent.
    pub(crate) fn is_lent(&self) -> bool {
        !self.lent.is_empty()
    }

    /// The thread with this number does not have the memory any more. Returns whether it was lent to that.
    pub(crate) fn ends_loan(&mut self, tid: i32) -> bool {
        self.lent.remove(&tid)
    }

    /// The memory is not lent any more: makes the program's own code unexecutable again.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn take_back(&mut self, thread: Stopped) -> Result<()> {
        let calls = self.calls_of(thread)?;
        for span in self.code.spans().all() {
            calls.mprotect(TargetAddr(span.start), span.len(), libc::PROT_READ)?;
        }
        for span in self.code.writable().all() {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            calls.mprotect(TargetAddr(span.start), span.len(), protection)?;
        }
        calls.end()?;
        self.memory.note_rights();
        self.is_open = false;
        self.closed = self.memory.count();
        // Nobody has seen what was written there.
        self.end_protection(None, EVERYWHERE).map(drop)
    }

    /// Whether the table has no room for a target.
    pub(crate) fn is_crowded(&self) -> bool {
        self.targets.is_crowded
    }

    /// Where an instruction of the program was translated to, if it was.
    pub(crate) fn known(&self, pc: u64) -> Option<u64> {
        self.known.get(pc)
    }

    /// Where the table of targets leads from an address of the program, if it has that.
    pub(crate) fn leads(&self, pc: u64) -> Option<u64> {
        self.targets.leads(pc)
    }

    /// Gives a running process back what hodo has taken from it: its code can be executed, and nothing of hodo is
    /// mapped. All of its threads are stopped before instructions of the program. Returns whether the process was found
    /// stopped as a whole.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn release(&self, thread: Stopped) -> Result<bool> {
        if !self.cache.is_empty() {
            let calls = self.calls_of(thread)?;
            self.open(&calls)?;
            calls.end()?;
        }
        let maps = self.list(thread)?;
        let is_own = |at: u64| self.cache.region_of(at).is_some();
        let theirs: Vec<Mapping> = maps.into_iter().filter(|map| !is_own(map.start)).collect();
        let calls = Syscalls::begin_anywhere(thread, &self.memory, &theirs)?;
        for span in self.cache.spans().chain(self.mapped.iter().copied()) {
            calls.munmap(TargetAddr(span.start), span.len())?;
        }
        calls.end_in_stop()
    }
}
