//! What of an address space is code of the program.

use hodo_abi::Span;

use super::EVERYWHERE;
use super::soft::LONGEST;
use crate::spans::Spans;

/// Code of the program.
#[derive(Debug, Clone, Default)]
pub(super) struct Code {
    /// What the program may execute.
    all: Spans,
    /// What of it may change without a system call that removes it: the program may write to it, or it is from no file,
    /// or who maps the same file may write to it.
    soft: Spans,
    /// What of it the program may also write.
    writable: Spans,
    /// Memory of which the kernel has let the program execute all that is mapped there.
    granted: Spans,
}

impl Code {
    /// What the program may execute.
    pub(super) fn spans(&self) -> &Spans {
        &self.all
    }

    /// What of it may change without a system call that removes it.
    pub(super) fn soft(&self) -> &Spans {
        &self.soft
    }

    /// What of it the program may also write.
    pub(super) fn writable(&self) -> &Spans {
        &self.writable
    }

    /// Memory of which the kernel has let the program execute all that is mapped there.
    pub(super) fn granted(&self) -> &Spans {
        &self.granted
    }

    /// Code that does not change.
    pub(super) fn hard(&self) -> Spans {
        let mut hard = self.all.clone();
        for span in self.soft.all() {
            hard.remove(span);
        }
        hard
    }

    /// Whether the instruction at an address may change without a system call that removes it.
    pub(super) fn may_change(&self, pc: u64) -> bool {
        self.soft.overlap(Span::at(pc, LONGEST))
    }

    /// Whether all of a range is code that does not change.
    pub(super) fn stays(&self, range: Span) -> bool {
        let code = self.all.at(range.start);
        code.is_some_and(|code| code.end >= range.end) && !self.soft.overlap(range)
    }

    /// The code that may jump directly to an instruction and is forgotten with it: that of other mappings does so
    /// through words that can be changed.
    pub(super) fn together(&self, pc: u64) -> Span {
        let span = self.all.at(pc).unwrap_or(EVERYWHERE);
        match self.soft.overlap(span) && !self.may_change(pc) {
            true => self.hard().around(Span::at(pc, 1)),
            false => span,
        }
    }

    /// The program may execute this from now on, and write to it or not. `soft`: it may change.
    pub(super) fn add(&mut self, range: Span, writable: bool, soft: bool) {
        self.all.add(range);
        self.granted.add(range);
        match soft {
            true => self.soft.add(range),
            false => self.soft.remove(range),
        }
        if writable {
            self.writable.add(range);
        }
    }

    /// The program may no longer execute this, or other code is there.
    pub(super) fn remove(&mut self, range: Span) {
        self.soft.remove(range);
        self.all.remove(range);
        self.writable.remove(range);
    }

    /// Other memory may be mapped here than the kernel has let the program execute.
    pub(super) fn forget_granted(&mut self, range: Span) {
        self.granted.remove(range);
    }
}
