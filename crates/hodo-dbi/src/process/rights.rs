//! Rights of memory that the program changes.

use anyhow::Result;
use hodo_abi::Span;
use hodo_ptrace::{Stopped, TargetAddr};

use super::Process;
use crate::spans::Spans;

/// The rights that memory has which the program wants to have these for, and which it may execute from the cache.
pub(crate) fn stripped(protection: u64) -> u64 {
    protection & !(libc::PROT_EXEC as u64) | libc::PROT_READ as u64
}

impl Process {
    /// Makes memory that the program may now execute unexecutable for itself. `protection` is what the program wants.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(crate) fn strip(&mut self, thread: Stopped, range: Span, protection: u64) -> Result<()> {
        let calls = self.calls_of(thread)?;
        let protection = stripped(protection) as i32;
        calls.mprotect(TargetAddr(range.start), range.len(), protection)?;
        calls.end()
    }

    /// Whether the kernel lets the program execute all of a range: it has done so before, and the same is mapped there.
    /// It refuses files of some file systems, for example.
    pub(crate) fn was_granted(&self, range: Span) -> bool {
        let granted = self.code.granted().at(range.start);
        granted.is_some_and(|granted| range.end <= granted.end)
    }

    /// Whether some of a range was granted.
    pub(crate) fn has_granted(&self, range: Span) -> bool {
        self.code.granted().overlap(range)
    }

    /// Other memory may be mapped here.
    pub(crate) fn forget_granted(&mut self, range: Span) {
        self.code.forget_granted(range);
    }

    /// The parts of a range that the program may not execute, or write to.
    pub(crate) fn changeable(&self, range: Span) -> Spans {
        let mut rest = Spans::default();
        rest.add(range);
        for code in self.code.spans().within(range) {
            rest.remove(code);
        }
        for writable in self.code.writable().within(range) {
            rest.add(writable);
        }
        rest
    }
}
