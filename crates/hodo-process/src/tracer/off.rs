//! Leading stopped threads away from code of ours that will not be there any more.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::delivery::skip_fetch;
use super::detach::{LEAVING, PATIENCE, Stopped, bit};
use super::stopping::after;
use super::{SharedSpace, Tracer};
use crate::machine;
use crate::remote::{self, Regs};
use crate::stops;

/// Instructions of ours that a thread may be from the next place that stands for one of the program.
const STEPS: u32 = 100_000;
/// Signals that an instruction raises itself.
pub(super) const OWN: [i32; 5] = [
    libc::SIGTRAP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
];

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
                let why = "this thread does not leave what leads to code of hodo, which goes away";
                return self.remark(tid, why);
            }
            self.run_on(&tids, stopped, after(Duration::from_millis(1)))?;
        }
    }

    /// Why hooks cannot go away, if a thread is between two instructions that lead to one.
    pub(super) fn coming(&self, tids: &BTreeSet<i32>, space: &SharedSpace) -> Option<&'static str> {
        let comes = |tid: &&i32| {
            let regs = remote::regs(**tid);
            regs.is_ok_and(|regs| space.borrow().is_in_hook(regs.pc()))
        };
        let mut tids = tids.iter().filter(|tid| self.threads.contains_key(tid));
        tids.any(|tid| comes(&tid))
            .then_some("a thread is on its way to code of hodo")
    }
}

/// Does it while the thread takes no signals but those that steps make.
pub(super) fn stepping(tid: i32, work: impl FnOnce() -> Result<bool>) -> Result<bool> {
    let mask = remote::signal_mask(tid)?;
    let own = OWN.iter().fold(0, |set, &signal| set | bit(signal));
    remote::set_signal_mask(tid, !own)?;
    let done = work();
    remote::set_signal_mask(tid, mask)?;
    done
}

/// Has a stopped thread leave code that leads from the program or back, by single steps. Tells whether it has.
fn come_off(tid: i32, space: &SharedSpace) -> Result<bool> {
    let is_off = |regs: Regs| Ok(!space.borrow().is_on_the_way(regs.pc()));
    let result = remote::regs(tid).and_then(|regs| match is_off(regs)? {
        true => Ok(true),
        false => {
            let off = stepping(tid, || steps_until(tid, space, is_off))?;
            stops::rest(tid)?;
            Ok(off)
        }
    });
    match result {
        Err(error) if remote::is_gone(&error) => Ok(true),
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
        let step = machine::step(tid, space.borrow().workshop, machine::SLOTS - 1)?;
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
        if done(remote::regs(tid)?)? {
            return Ok(true);
        }
    }
    Ok(false)
}
