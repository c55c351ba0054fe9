//! Code that is executed often is translated again.

use anyhow::Result;

use hodo_ptrace::{Stopped, Syscalls, TargetAddr};

use crate::native::redirect::steps;
use crate::process::{Place, Process, ROOM};
use crate::profile::Profile;

/// A block is executed often if a sample of records has it this many times.
const OFTEN: u32 = 8;
/// The maximum number of blocks that are translated again at once.
const MOST_STARTS: usize = 256;
/// The maximum number of instructions that are translated again at once.
const MOST_HOT: usize = 3000;

impl Process {
    /// Translates again what is executed often, in a way that records less. Threads continue there from the beginning
    /// of each of these blocks.
    ///
    /// # Errors
    /// If there is no room, or the process is gone.
    pub(crate) fn optimize(&mut self, thread: Stopped, profile: &Profile) -> Result<()> {
        let is_new = |pc: u64| {
            self.known.get(pc).is_some()
                && !self.hot.contains(&pc)
                && self.is_code(pc)
                && !self.may_change(pc)
        };
        let often = profile
            .iter()
            .filter(|&(&pc, &count)| count >= OFTEN && is_new(pc));
        let mut often: Vec<(u32, u64)> = often.map(|(&pc, &count)| (count, pc)).collect();
        often.sort_unstable_by(|a, b| b.cmp(a));
        let Some(&(_, first)) = often.first() else {
            return Ok(());
        };
        let Some(region) = self.cache.region_for(first, ROOM) else {
            return Ok(());
        };
        let starts = often.into_iter().map(|(_, pc)| pc);
        let together = self.code.together(first);
        let starts = starts.filter(|&pc| together.contains(pc));
        let starts: Vec<u64> = starts.take(MOST_STARTS).collect();
        if let Some(recorder) = &self.recorder {
            recorder.borrow().check_room(&self.counters(), MOST_HOT)?;
        }
        let within = (together, false);
        let (translation, _) = self.translate(region, &starts, Some(profile), MOST_HOT, within);
        self.tell_blocks(&translation);
        let new: Vec<(u64, u64)> = translation.instructions.clone();
        let old = new.iter().map(|&(pc, at)| (self.known.get(pc), at));
        let moved: Vec<(u64, u64)> = old.filter_map(|(old, at)| Some((old?, at))).collect();
        self.extend(thread, region, translation.bytes.len())?;
        let returns = self.add(region, translation)?;
        self.put_targets(&returns)?;
        self.hot.extend(new.iter().map(|&(pc, _)| pc));
        self.lead(thread, &moved)
    }

    /// Has threads that reach the first of these addresses continue at the second ones. Other threads may be executing
    /// what is there.
    pub(super) fn lead(&mut self, thread: Stopped, moved: &[(u64, u64)]) -> Result<()> {
        let mut changes = Vec::new();
        for &(from, to) in moved {
            if let Some(steps) = steps(from, to)
                && let Some(Place::At(point)) = self.place(from)
            {
                self.stops.add_moved(from, point.original);
                changes.push((from, steps.into_iter()));
            }
        }
        // Alone, this thread executes nothing meanwhile, and the kernel's return to it takes the code as it is then.
        let calls = match self.is_alone() {
            true => None,
            false => Some(self.calls_of(thread)?),
        };
        let mut has_begun = false;
        loop {
            let next = changes.iter_mut();
            let next = next.filter_map(|(from, steps)| Some((*from, steps.next()?)));
            let next: Vec<_> = next.collect();
            if next.is_empty() {
                break;
            }
            if let Some(calls) = calls.as_ref().filter(|_| has_begun)
                && !calls.sync_core()?
            {
                break;
            }
            for (from, (offset, bytes)) in next {
                self.memory()
                    .write(TargetAddr(from).offset(offset), &bytes)?;
            }
            has_begun = true;
        }
        calls.map_or(Ok(()), Syscalls::end)
    }
}
