//! Programs say which parts of their runs are observed.
//!
//! Outside of these parts, they run from the cache, where nothing is inserted but breakpoints at markers. Where the
//! first part of a process begins and where the last one ends, all threads wait, and its address space is made anew,
//! as if hodo had just attached to it.

use std::rc::Rc;

use anyhow::{Result, bail};
use hodo_ptrace::{Stopped, is_gone};

use super::{Engine, Shared};
use crate::markers::Marker;
use crate::process::Process;

impl Engine {
    /// The address space of a thread of a process that is in this many parts. It is not prepared yet.
    ///
    /// # Errors
    /// If the thread is gone.
    pub(super) fn space(&self, thread: Stopped, depth: u32) -> Result<Process> {
        let is_observed = self.markers.is_none() || depth > 0;
        let recorder = self.recorder.clone().filter(|_| is_observed);
        let mut process = Process::new(thread, recorder, Rc::clone(&self.kept))?;
        process.set_markers(self.markers.clone(), depth);
        Ok(process)
    }

    /// In how many parts the process of a thread is. That stays if it executes another program.
    pub(super) fn depth_of(&self, tid: i32) -> u32 {
        let known = self.threads.get(&tid);
        let process = known.and_then(|known| known.process.as_ref());
        process.map_or(0, |process| process.borrow().depth())
    }

    /// A thread has reached a marker, and the instruction that comes next is this one. If its process is to be observed
    /// from here on, or not any more, the thread waits until all have come to a stop.
    pub(super) fn at_marker(
        &mut self,
        thread: Stopped,
        process: &Shared,
        at: u64,
        (marker, next): (Marker, u64),
    ) -> Result<()> {
        let before = process.borrow().depth();
        let depth = marker.after(before);
        let mut regs = thread.regs()?;
        if !self.changes(before, depth) {
            process.borrow_mut().set_depth(depth);
            self.note_beginning(depth);
            return self.enter(thread, process, next);
        }
        regs.set_pc(at);
        thread.set_regs(&regs)?;
        match self.parked {
            // It reaches the marker again.
            Some(_) => self.park(thread, false),
            None => {
                self.at_markers.push(thread);
                Ok(())
            }
        }
    }

    /// Whether a process has to be observed in another way if it is in this many parts, and was in that many.
    fn changes(&self, before: u32, depth: u32) -> bool {
        self.recorder.is_some() && (before == 0) != (depth == 0)
    }

    /// Fails if programs say which parts of their runs are observed, and none has begun.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn has_begun(&self) -> Result<()> {
        let markers = self.markers.as_ref().map(|markers| markers.borrow());
        match markers.filter(|markers| !markers.have_begun) {
            Some(markers) => bail!("{}", markers.why_nothing()),
            None => Ok(()),
        }
    }

    fn note_beginning(&self, depth: u32) {
        if let Some(markers) = &self.markers {
            markers.borrow_mut().have_begun |= depth > 0;
        }
    }

    /// Threads that wait at markers wait with the others from now on.
    ///
    /// # Errors
    /// What has failed.
    pub(super) fn park_at_markers(&mut self) -> Result<()> {
        for thread in std::mem::take(&mut self.at_markers) {
            match self.park(thread, false) {
                Err(error) if !is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Changes how processes are observed that have reached markers.
    ///
    /// # Errors
    /// What has failed. All threads are left then.
    pub(super) fn change_marked(&mut self) -> Result<()> {
        if self.at_markers.is_empty() {
            return Ok(());
        }
        let reached = self.at_markers.clone();
        let changed = self.park_all().and_then(|()| self.change_parked(&reached));
        if changed.is_err() {
            self.let_go();
        }
        changed
    }

    /// All threads wait. These have reached markers.
    fn change_parked(&mut self, reached: &[Stopped]) -> Result<()> {
        let mut changed: Vec<(Shared, u32)> = Vec::new();
        for &thread in reached.iter().filter(|thread| self.is_parked(thread.tid())) {
            let Some(process) = self.process(thread) else {
                continue;
            };
            let mut regs = thread.regs()?;
            // It may have gone on meanwhile.
            let marker = process.borrow_mut().marker(thread, regs.pc())?;
            let Some((marker, next)) = marker else {
                continue;
            };
            regs.set_pc(next);
            thread.set_regs(&regs)?;
            let before = process.borrow().depth();
            if !changed.iter().any(|(known, _)| Rc::ptr_eq(known, &process)) {
                changed.push((Rc::clone(&process), before));
            }
            let depth = marker.after(before);
            process.borrow_mut().set_depth(depth);
            self.note_beginning(depth);
        }
        changed.retain(|(process, before)| self.changes(*before, process.borrow().depth()));
        let is_changed = |process: &Shared| {
            let mut changed = changed.iter();
            changed.any(|(known, _)| Rc::ptr_eq(known, process))
        };
        self.disarm_parked(is_changed)?;
        for (process, worker) in self.processes_of_parked() {
            if is_changed(&process) {
                self.renew(&process, worker)?;
            }
        }
        self.resume_parked()
    }
}
