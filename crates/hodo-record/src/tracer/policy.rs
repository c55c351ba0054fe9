//! What a recording does with the threads that it follows.

use std::io;

use anyhow::{Error, Result, bail};
use hodo_follow::{Exit, Made, Policy, Program, Task, Tasks};
use hodo_isa::native::asm::SYSTEM_CALL;
use hodo_ptrace as ptrace;
use hodo_ptrace::{Report, Stopped, TargetAddr, look_into, stops};

use super::{Thread, Tracer};
use crate::control::Control;
use crate::reserve;

impl Task for Thread {
    fn process(&self) -> i32 {
        self.pid
    }

    /// Its control block.
    fn mark(&self) -> Option<u64> {
        self.block()
    }

    fn as_maker(&self) -> Self {
        self.clone()
    }
}

impl Policy for Tracer<'_> {
    type Task = Thread;

    const DONE: &'static str = "recorded";

    fn tasks(&mut self) -> &mut Tasks<Thread> {
        &mut self.threads
    }

    fn program(&mut self) -> &mut Program {
        &mut self.program
    }

    fn mark_of(&self, child: Stopped) -> Result<u64> {
        // It comes from the system call that has made it.
        let call = child.regs()?.pc().wrapping_sub(SYSTEM_CALL.len() as u64);
        look_into(child, TargetAddr(call), || child.block())
    }

    fn look(&mut self) -> Result<bool> {
        self.answer()?;
        if reserve::was_needed() {
            bail!("out of memory");
        }
        Ok(true)
    }

    fn wait(&mut self) -> io::Result<Option<Report>> {
        let _awake = self.control.as_ref().map(Control::wakes);
        Report::any(true)
    }

    fn adopt(
        &mut self,
        child: Stopped,
        maker: Option<&Thread>,
        made: Made,
        beside: Option<Stopped>,
    ) -> Result<()> {
        self.take_over(child, maker, made, beside)
    }

    fn executed(&mut self, thread: Stopped) -> Result<()> {
        self.exec(thread)
    }

    fn exits(&mut self, thread: Stopped) -> Result<()> {
        self.exiting(thread)
    }

    fn ended(&mut self, tid: i32, known: Thread, exit: Exit) -> Result<()> {
        self.part(tid);
        if let Some(number) = known.tcb.filter(|_| known.task != 0 && !self.full) {
            self.session.events.keep_rest(number);
        }
        self.release(&known, Some(exit))
    }

    fn signaled(&mut self, thread: Stopped, signal: i32) -> Result<()> {
        self.signal(thread, signal)
    }

    fn at_call(&mut self, thread: Stopped) -> Result<()> {
        self.signal(thread, stops::SYSTEM_CALL)
    }

    fn asked(&mut self, thread: Stopped) -> Result<()> {
        if self.is_in_handler(thread)? {
            return Ok(());
        }
        // The stop was requested, but nobody waits for it any more.
        stops::restart_call(thread)?;
        self.go(thread, 0)
    }

    fn stops_with_program(&self) -> bool {
        !self.options.keep_pid
    }

    fn goes_on(&mut self, thread: Stopped) -> Result<()> {
        self.take_back(thread)?;
        self.go(thread, 0)
    }

    fn go(&mut self, thread: Stopped, signal: i32) -> Result<()> {
        Tracer::go(self, thread, signal)
    }

    fn failed(&mut self, report: Report, error: Error) -> Result<()> {
        // A thread may be killed at any time; its end is reported separately.
        if ptrace::is_gone(&error) {
            return Ok(());
        }
        self.remark(report.tid(), &format!("{error:#}"))?;
        if let Some(stopped) = report.stopped() {
            let _ = match report.event() {
                // The problem is its child's.
                libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                    self.go(stopped, 0)
                }
                _ => stopped.cont(0),
            };
        }
        Ok(())
    }

    fn failed_with(&mut self, orphan: Stopped, error: Error) -> Result<()> {
        if !ptrace::is_gone(&error) {
            let _ = self.remark(orphan.tid(), &format!("{error:#}"));
        }
        Ok(())
    }
}
