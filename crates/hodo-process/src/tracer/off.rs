//! Leading stopped threads away from code of ours that will not be there any more.

use hodo_ptrace::arch;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::delivery::skip_fetch;
use super::stopping::after;
use super::stopping::{OWN, PATIENCE, Stopped, bit};
use super::{SharedSpace, Tracer};
use hodo_ptrace as ptrace;
use hodo_ptrace::Regs;
use hodo_ptrace::stops;

/// How long threads get to leave places from which they cannot be moved.
pub(super) const LEAVING: Duration = Duration::from_secs(3);
/// Instructions of ours that a thread may be from the next place that stands for one of the program.
const STEPS: u32 = 100_000;
impl Tracer<'_> {
    /// Has threads leave what leads from the program or back, which will not be there any more. One that does not is left where it
    /// is, after a while: the code is put back all the same, for what is left behind would end the program at its next breakpoint.
    pub(super) fn all_come_off(
        &mut self,
        stopped: &mut Stopped,
        space: &SharedSpace,
    ) -> Result<()> {
        let begun = Instant::now();
        loop {
            let tids = self.stopped_in(space, stopped);
            let mut stays = None;
            for &tid in &tids {
                if !come_off(tid, space)? {
                    stays = Some(tid);
                }
            }
            let Some(tid) = stays else {
                return Ok(());
            };
            if begun.elapsed() > LEAVING {
                let why = "this thread does not leave code that leads into hodo's, which is being removed";
                return self.remark(tid, why);
            }
            self.run_on(&tids, stopped, after(Duration::from_millis(1)))?;
        }
    }

    /// Why hooks cannot go away, if a thread is between two instructions that lead to one.
    pub(super) fn coming(&self, tids: &BTreeSet<i32>, space: &SharedSpace) -> Option<&'static str> {
        let comes = |tid: &&i32| {
            let regs = ptrace::regs(**tid);
            regs.is_ok_and(|regs| space.borrow().is_in_hook(regs.pc()))
        };
        let mut tids = tids.iter().filter(|tid| self.threads.contains_key(tid));
        tids.any(|tid| comes(&tid))
            .then_some("a thread is about to enter hodo's code")
    }
}

/// Does it while the thread takes no signals but those that steps make.
pub(super) fn stepping(tid: i32, work: impl FnOnce() -> Result<bool>) -> Result<bool> {
    let mask = ptrace::signal_mask(tid)?;
    let own = OWN.iter().fold(0, |set, &signal| set | bit(signal));
    ptrace::set_signal_mask(tid, !own)?;
    let done = work();
    ptrace::set_signal_mask(tid, mask)?;
    done
}

/// Has a stopped thread leave code that leads from the program or back, by single steps. Tells whether it has.
fn come_off(tid: i32, space: &SharedSpace) -> Result<bool> {
    let is_off = |regs: Regs| Ok(!space.borrow().is_on_the_way(regs.pc()));
    let result = ptrace::regs(tid).and_then(|regs| match is_off(regs)? {
        true => Ok(true),
        false => {
            let off = stepping(tid, || steps_until(tid, space, is_off))?;
            stops::rest(tid)?;
            Ok(off)
        }
    });
    match result {
        Err(error) if ptrace::is_gone(&error) => Ok(true),
        result => result,
    }
}

/// Single steps of a stopped thread, until it is where it is to be. Tells whether it is.
pub(super) fn steps_until(
    tid: i32,
    space: &SharedSpace,
    done: impl Fn(Regs) -> Result<bool>,
) -> Result<bool> {
    for _ in 0..STEPS {
        let step = arch::step(tid, space.borrow().workshop, arch::SLOTS - 1)?;
        let Some(status) = stops::wait_for(tid, PATIENCE)? else {
            return Ok(false);
        };
        if !libc::WIFSTOPPED(status) {
            return Err(std::io::Error::from_raw_os_error(libc::ESRCH).into());
        }
        step.end(tid)?;
        let signal = libc::WSTOPSIG(status);
        if status >> 16 == 0
            && matches!(signal, libc::SIGSEGV | libc::SIGBUS)
            && !skip_fetch(tid, space)?
        {
            return Ok(false);
        }
        if done(ptrace::regs(tid)?)? {
            return Ok(true);
        }
    }
    Ok(false)
}
