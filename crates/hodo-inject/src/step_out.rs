//! Leads stopped threads out of our code.

use anyhow::Result;
use hodo_ptrace as ptrace;
use hodo_ptrace::arch;
use hodo_ptrace::stops;
use hodo_ptrace::stops::{OWN, PATIENCE, bit};
use hodo_ptrace::{Regs, Stopped};

use crate::space::SharedSpace;

/// How many of our instructions a thread may be away from the next one that stands for one of the program.
const STEPS: u32 = 100_000;

/// Runs `work` while the thread takes no signals except those that steps cause.
pub fn stepping(thread: Stopped, work: impl FnOnce() -> Result<bool>) -> Result<bool> {
    let mask = thread.signal_mask()?;
    let own = OWN.iter().fold(0, |set, &signal| set | bit(signal));
    thread.set_signal_mask(!own)?;
    let done = work();
    thread.set_signal_mask(mask)?;
    done
}

/// Emulates our instructions for a stopped thread, until `is_done` returns true for its registers. Returns these, or
/// `None` if that is not possible.
pub fn run_ahead(
    thread: Stopped,
    regs: &Regs,
    is_done: impl FnMut(&Regs) -> bool,
) -> Result<Option<Regs>> {
    // A system call that ends in our code is one that we have made.
    let mut regs = *regs;
    regs.end_call();
    match arch::run_ahead(thread, &regs, is_done) {
        Err(error) if !ptrace::is_gone(&error) => Ok(None),
        result => result,
    }
}

/// Makes a stopped thread leave code that leads from the program or back. Returns whether it has left. If not, it does
/// so by itself when it runs.
pub fn come_off(thread: Stopped, space: &SharedSpace) -> Result<bool> {
    let is_off = |regs: Regs| Ok(!space.borrow().is_on_the_way(regs.pc()));
    let result = thread.regs().and_then(|regs| match is_off(regs)? {
        true => Ok(true),
        false => {
            let ahead = run_ahead(thread, &regs, |regs| {
                !space.borrow().is_on_the_way(regs.pc())
            })?;
            if ahead.is_some() || arch::INTERPRETS {
                return Ok(ahead.is_some());
            }
            let off = stepping(thread, || steps_until(thread, space, is_off))?;
            stops::rest(thread)?;
            Ok(off)
        }
    });
    match result {
        Err(error) if ptrace::is_gone(&error) => Ok(true),
        result => result,
    }
}

/// Makes a stopped thread do single steps until it is where it should be. Returns whether it is.
pub fn steps_until(
    thread: Stopped,
    space: &SharedSpace,
    done: impl Fn(Regs) -> Result<bool>,
) -> Result<bool> {
    for _ in 0..STEPS {
        let step = thread.step(space.borrow().scratch_page(), arch::SLOTS - 1)?;
        let Some(report) = stops::wait_for(thread.tid(), PATIENCE)? else {
            return Ok(false);
        };
        if report.stopped().is_none() {
            return Err(std::io::Error::from_raw_os_error(libc::ESRCH).into());
        }
        step.end(thread)?;
        if report.event() == 0
            && matches!(report.signal(), libc::SIGSEGV | libc::SIGBUS)
            && !skip_fetch(thread, space)?
        {
            return Ok(false);
        }
        if done(thread.regs()?)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// If a probe's fetch has faulted: lets the thread continue without the value.
pub fn skip_fetch(thread: Stopped, space: &SharedSpace) -> Result<bool> {
    if !space.borrow().written().may_fault() {
        return Ok(false);
    }
    let mut regs = thread.regs()?;
    let Some(next) = space.borrow().written().after_fault(regs.pc()) else {
        return Ok(false);
    };
    regs.set_pc(next);
    thread.set_regs(&regs)?;
    Ok(true)
}
