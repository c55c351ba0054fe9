//! The first process of a PID namespace, which the kernel protects from signals.

use anyhow::Result;

use super::Tracer;
use super::delivery::CAUSED;
use crate::machine;
use crate::options::Exit;
use crate::remote;
use crate::stops;

impl Tracer<'_> {
    /// A signal that an instruction has caused ends the first process of a PID namespace, unless it has a handler. The kernel does not end
    /// it so while it is traced: the instruction would be executed again and again. So it gets to execute it untraced.
    /// Returns whether it was that.
    pub(super) fn ends_first_process(&mut self, tid: i32, signal: i32) -> Result<bool> {
        if !CAUSED.contains(&signal) || stops::is_caught(tid, signal) || !stops::is_first(tid) {
            return Ok(false);
        }
        // Where there is no information, the whole process stops.
        let Ok(info) = remote::siginfo(tid) else {
            return Ok(false);
        };
        if info.si_code <= 0 {
            return Ok(false);
        }
        let mut regs = remote::regs(tid)?;
        match signal {
            libc::SIGTRAP if machine::is_breakpoint(&info) => regs.set_pc(regs.breakpoint()),
            libc::SIGTRAP => return Ok(false),
            libc::SIGSYS => {
                regs.set_pc(regs.pc().wrapping_sub(machine::SYSTEM_CALL.len() as u64));
            }
            _ => {}
        }
        remote::set_regs(tid, &regs)?;
        self.remark(
            tid,
            "the first process of a PID namespace gets a signal that ends it only while it is not traced: it is let go",
        )?;
        remote::detach(tid)?;
        // The end of a child of hodo is reported to hodo in any case.
        if tid != self.first {
            self.part(tid);
            if let Some(thread) = self.threads.remove(&tid) {
                self.release(&thread, Some(Exit::Signal(signal)))?;
            }
        }
        Ok(true)
    }
}
