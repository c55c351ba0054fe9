//! Waits until threads are outside unwinders.
//!
//! A thread that throws all the time is hardly ever found outside. So all threads are held for a moment where they
//! begin to unwind: by then, everything that they have thrown before has been caught.

use hodo_inject::site_writer;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::super::stopping::{after, tell_late};
use super::super::{SharedSpace, Tracer};
use super::Halted;
use hodo_inject::frames;
use hodo_ptrace::Stopped;
use hodo_ptrace::maps;
use hodo_ptrace::stops::PATIENCE;

/// How long threads may take to stop while others are held.
const HELD: Duration = Duration::from_millis(200);

impl Tracer<'_> {
    /// Lets stopped threads run for some time, or until they begin to unwind.
    pub(super) fn run_until_unwinding(
        &mut self,
        own: &BTreeSet<Stopped>,
        space: &SharedSpace,
        halted: &mut Halted,
        time: Duration,
    ) -> Result<()> {
        let Some(first) = own.first() else {
            return Ok(());
        };
        let memory = first.memory()?;
        let maps = maps::read(first.tid())?;
        let mut places = Vec::new();
        for &stopped in own {
            let Ok(regs) = stopped.regs() else {
                continue;
            };
            places.push(regs.pc());
            let holds = |at| space.borrow().holds(at);
            let handled = frames::signal_frames(stopped, &memory, &maps, &holds)?;
            places.extend(handled.iter().map(|frame| frame.pc));
        }
        site_writer::hold(&memory, &mut space.borrow_mut(), &places);
        let run = self.run_held(own, halted, time);
        site_writer::release(&memory, &mut space.borrow_mut());
        if !run? {
            let all = self.threads.keys().copied().collect();
            self.run_on(&all, halted, || true)?;
        }
        Ok(())
    }

    /// Returns whether all have stopped. Code must not be changed while threads run, but a thread may wait for a child
    /// that is held.
    fn run_held(
        &mut self,
        own: &BTreeSet<Stopped>,
        halted: &mut Halted,
        time: Duration,
    ) -> Result<bool> {
        let mut all = self.run_within(own, halted, after(time), Some(HELD))?;
        let mut begun = Instant::now();
        while !all && !self.threads.keys().any(|&tid| self.is_awaited(tid)) {
            let tids = self.threads.keys().copied();
            let rest: BTreeSet<i32> = tids.filter(|tid| !halted.contains_key(tid)).collect();
            if begun.elapsed() > PATIENCE {
                tell_late(rest.iter());
                begun = Instant::now();
            }
            let (mut more, rest) = self.stop_within(&rest, Some(HELD))?;
            halted.append(&mut more);
            all = rest;
        }
        Ok(all)
    }
}
