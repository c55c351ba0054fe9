//! Unwinders: who is in one, and how threads are met outside of them.
//!
//! A thread that throws without pause is hardly ever met outside. So all are held for a moment where they begin to unwind: what they
//! have thrown before has been caught by then.

use std::collections::BTreeSet;
use std::iter::once;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::super::stopping::{after, tell_late};
use super::super::{SharedSpace, Tracer};
use super::{PATIENCE, Stopped};
use crate::frames;
use crate::instrument;
use crate::space::Space;
use hodo_ptrace as ptrace;
use hodo_ptrace::Memory;
use hodo_ptrace::maps;
use hodo_ptrace::maps::Mapping;

/// How far above the stack pointer unwinders are looked for.
const UNWINDING: usize = 16 << 10;
/// How long threads may take to stop while others are held.
const HELD: Duration = Duration::from_millis(200);

/// The code of unwinders.
pub(super) struct Unwinders<'a> {
    ranges: Vec<Range<u64>>,
    space: &'a Space,
}

impl<'a> Unwinders<'a> {
    pub(super) fn new(maps: &[Mapping], space: &'a Space) -> Self {
        let is_unwinder = |mapping: &&Mapping| {
            let name = mapping.path.file_name().and_then(|name| name.to_str());
            mapping.executable
                && name.is_some_and(|name| name.contains("libgcc_s") || name.contains("libunwind"))
        };
        let libraries = maps.iter().filter(is_unwinder).map(|m| m.start..m.end);
        let functions = space.unwinders.iter().map(|&(at, size)| at..at + size);
        Self {
            ranges: libraries.chain(functions).collect(),
            space,
        }
    }

    /// Is an unwinder on its way where a thread is at `pc` and the stack begins with these words, and has it met code of ours?
    pub(super) fn are_met(&self, pc: u64, words: &[u64]) -> bool {
        let top = || words.iter().take(UNWINDING / 8).copied().chain(once(pc));
        // Who is where it begins has not begun. No return address is there.
        let unwinding = |word: u64| {
            let mut ranges = self.ranges.iter();
            ranges.any(|range| range.contains(&word)) && !self.space.unwinding.contains(&word)
        };
        top().any(unwinding) && top().any(|word| self.space.holds(word))
    }
}

impl Tracer<'_> {
    /// Lets stopped threads run for some time, or until they begin to unwind.
    pub(super) fn run_until_unwinding(
        &mut self,
        own: &BTreeSet<i32>,
        space: &SharedSpace,
        stopped: &mut Stopped,
        time: Duration,
    ) -> Result<()> {
        let Some(&first) = own.first() else {
            return Ok(());
        };
        let memory = Memory::open(first)?;
        let maps = maps::read(first)?;
        let mut places = Vec::new();
        for &tid in own {
            let Ok(regs) = ptrace::regs(tid) else {
                continue;
            };
            places.push(regs.pc());
            let holds = |at| space.borrow().holds(at);
            let handled = frames::signal_frames(tid, &memory, &maps, &holds)?;
            places.extend(handled.iter().map(|frame| frame.pc));
        }
        instrument::hold(&memory, &mut space.borrow_mut(), &places);
        let run = self.run_held(own, stopped, time);
        instrument::release(&memory, &space.borrow());
        space.borrow_mut().held.clear();
        if !run? {
            let all = self.threads.keys().copied().collect();
            self.run_on(&all, stopped, || true)?;
        }
        Ok(())
    }

    /// Tells whether all have stopped. Code must not be changed while threads run, but one may wait for a child that is held.
    fn run_held(
        &mut self,
        own: &BTreeSet<i32>,
        stopped: &mut Stopped,
        time: Duration,
    ) -> Result<bool> {
        let mut all = self.run_within(own, stopped, after(time), Some(HELD))?;
        let mut begun = Instant::now();
        while !all && !self.threads.keys().any(|&tid| self.is_awaited(tid)) {
            let tids = self.threads.keys().copied();
            let rest: BTreeSet<i32> = tids.filter(|tid| !stopped.contains_key(tid)).collect();
            if begun.elapsed() > PATIENCE {
                tell_late(rest.iter());
                begun = Instant::now();
            }
            let (mut more, rest) = self.stop_within(&rest, Some(HELD))?;
            stopped.append(&mut more);
            all = rest;
        }
        Ok(all)
    }
}
