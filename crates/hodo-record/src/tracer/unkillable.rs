//! The first process of a PID namespace, which the kernel protects from signals.

use anyhow::Result;
use hodo_ptrace::arch;

use super::Tracer;
use super::delivery::CAUSED;
use crate::options::Exit;
use hodo_ptrace::Stopped;

impl Tracer<'_> {
    /// A signal that an instruction has caused ends the first process of a PID namespace, unless it has a handler. But
    /// the kernel does not end it while it is traced: the instruction would be executed again and again. So it is
    /// released to execute it untraced. Returns whether that was the case.
    pub(super) fn ends_first_process(&mut self, stopped: Stopped, signal: i32) -> Result<bool> {
        let tid = stopped.tid();
        if !CAUSED.contains(&signal)
            || hodo_ptrace::is_caught(tid, signal)
            || !hodo_ptrace::is_first(tid)
        {
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
        if tid != self.first {
            self.part(tid);
            if let Some(thread) = self.threads.remove(&tid) {
                self.release(&thread, Some(Exit::Signal(signal)))?;
            }
        }
        Ok(true)
    }
}
