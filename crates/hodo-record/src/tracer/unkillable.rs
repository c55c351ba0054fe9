//! The first process of a PID namespace, which the kernel protects from signals.

use anyhow::Result;
use hodo_ptrace::arch;

use super::Tracer;
use hodo_follow::{Exit, ends_untraced};
use hodo_ptrace::Stopped;

impl Tracer<'_> {
    /// If a signal ends the first process of a PID namespace only untraced (see [`ends_untraced`]), releases the
    /// process, to execute the instruction again. Returns whether that was the case.
    pub(super) fn ends_first_process(&mut self, stopped: Stopped, signal: i32) -> Result<bool> {
        let tid = stopped.tid();
        if !ends_untraced(tid, signal) {
            return Ok(false);
        }
        // If there is no information, the whole process is stopping.
        let Ok(info) = stopped.siginfo() else {
            return Ok(false);
        };
        if info.si_code <= 0 {
            return Ok(false);
        }
        let mut regs = stopped.regs()?;
        match signal {
            libc::SIGTRAP if arch::is_breakpoint(&info) => regs.set_pc(regs.breakpoint()),
            libc::SIGTRAP => return Ok(false),
            libc::SIGSYS => {
                regs.set_pc(regs.pc().wrapping_sub(arch::SYSTEM_CALL.len() as u64));
            }
            _ => {}
        }
        stopped.set_regs(&regs)?;
        self.remark(
            tid,
            "the first process of a PID namespace gets a signal that ends it only while it is not traced: it is released",
        )?;
        stopped.detach()?;
        // The end of hodo's own child is reported to hodo in any case.
        if tid != self.program.first {
            self.part(tid);
            if let Some(thread) = self.threads.remove(&tid) {
                self.release(&thread, Some(Exit::Signal(signal)))?;
            }
        }
        Ok(true)
    }
}
