//! Instructions of which a processor cannot fetch the rest.

use hodo_ptrace::{Stopped, TargetAddr};

use super::Process;
use crate::native::Native;
use crate::translate::Set;

impl Process {
    /// Where code ends in the middle of an instruction.
    pub(super) fn cut(&self, pc: u64) -> Option<u64> {
        let mut bytes = [0; 16];
        let end = self.code.spans().at(pc)?.end;
        let rest = bytes.get_mut(..usize::try_from(end - pc).ok()?)?;
        let len = rest.len();
        let is_read = len < 16 && self.memory.read_some(TargetAddr(pc), rest) == len;
        (is_read && Native::is_cut(&bytes, len)).then_some(end)
    }

    /// Where a thread is to continue that comes to an instruction which it may not execute: it must fault as alone. The
    /// part that it could fetch is code, which does not fault alone.
    pub(crate) fn faulting(&mut self, thread: Stopped, pc: u64) -> u64 {
        let Some(end) = self.cut(pc) else {
            return pc;
        };
        self.cuts.insert(thread.tid(), (end, pc));
        end
    }

    /// The instruction of which a thread was to fetch the rest, if it has come to that.
    pub(crate) fn take_cut(&mut self, thread: Stopped, at: u64) -> Option<u64> {
        let (end, pc) = self.cuts.remove(&thread.tid())?;
        (end == at).then_some(pc)
    }
}
