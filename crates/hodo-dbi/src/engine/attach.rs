//! The engine attaches to processes that run already, and leaves processes that run on.
//!
//! Coming is simple, for return addresses on stacks are always the program's own. hodo stops all threads, maps what it
//! needs and makes the code unexecutable. Threads continue where they were; the first thing that happens is a fault, at
//! which hodo continues them in the cache. System calls that the stop breaks off are restarted at the program's own
//! instructions, in the same way.
//!
//! For leaving, hodo brings each thread to the program's state before an instruction, as for a signal. When all
//! wait there, it takes back what it has changed.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hodo_follow::Exit;
use hodo_module::mapped::of_mapping;
use hodo_ptrace::arch::BLOCK_IN_USE;
use hodo_ptrace::processes::shares_memory;
use hodo_ptrace::signals::Interrupts;
use hodo_ptrace::stops::{self, OWN, Stops};
use hodo_ptrace::{Report, Stopped, is_gone, maps};

use super::limit::Limit;
use super::{Engine, Parked, Shared};
use crate::process::Stop;
use crate::recorder::{Beginning, Recorder};
use crate::trap::Actions;

/// If nothing has happened for this time, threads that wait may be those that others need to come to a stop,
const ALONE: Duration = Duration::from_millis(200);
/// and run for this time at first.
const TOGETHER: Duration = Duration::from_millis(50);
/// The longest time that they run.
const LONGEST: Duration = Duration::from_millis(400);

/// A file of a process that has restartable sequences.
pub(super) fn with_sequences(pid: i32) -> Option<PathBuf> {
    let mappings = maps::read(pid).ok()?;
    // Their beginnings: hodo may have taken the right to execute the rest. Devices are not opened.
    let mut files = mappings.into_iter().filter(|mapping| {
        mapping.inode != 0 && mapping.offset == 0 && !mapping.path.starts_with("/dev")
    });
    files.find_map(|mapping| {
        let (_, image) = of_mapping(pid, &mapping).ok()?;
        image.has_sequences().then_some(mapping.path)
    })
}

impl Engine {
    /// Comes to a running process.
    ///
    /// # Errors
    /// If it cannot be traced, or there is no room. It runs on untraced then.
    pub(super) fn take_over(&mut self, pid: i32) -> Result<()> {
        if let Some(file) = with_sequences(pid) {
            bail!(
                "process {pid} may be in restartable sequences (rseq), which {} has, and hodo would not restart them: start \
                 the program under hodo, where it does without",
                file.display()
            );
        }
        let mut stops = Stops::new(pid, self.options());
        let taken = stops
            .stop_all()
            .and_then(|()| self.take_threads(&mut stops));
        if let Err(error) = taken {
            if let Some(exit) = stops.detach().and_then(Exit::of) {
                self.program.ended(pid, exit);
            }
            return Err(error);
        }
        for thread in stops.threads() {
            // It may have made system calls for hodo. From another stop, the kernel restarts its own.
            match thread.interrupt().and_then(|()| thread.cont(0)) {
                Err(error) if !is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn take_threads(&mut self, stops: &mut Stops) -> Result<()> {
        for thread in stops.threads() {
            if thread.block()? != 0 {
                bail!("process {thread} {BLOCK_IN_USE}");
            }
        }
        let worker = stops.worker().context("there is no thread")?;
        if let Some(other) = shares_memory(stops.pid()) {
            bail!(
                "process {} shares its memory with process {other}, which would fault in code that hodo makes unexecutable",
                stops.pid()
            );
        }
        let mut process = self.space(worker, 0)?;
        // Its first thread may have registered them, although there are none.
        process.refuses_sequences(|| false);
        let process = Rc::new(RefCell::new(process));
        let threads: Vec<Stopped> = stops.threads().collect();
        let begun = self.begin_threads(&threads, &process);
        if begun.is_err() {
            // As far as it has come.
            for thread in stops.threads() {
                self.threads.remove(&thread.tid());
                thread.set_block(0, 0, 0)?;
            }
            let group = process.borrow().release(worker)?;
            stops.set_group(worker, group);
        }
        begun
    }

    /// Begins to observe threads of a process that are before instructions of the program. What is known of them
    /// stays.
    fn begin_threads(&mut self, threads: &[Stopped], process: &Shared) -> Result<()> {
        let mut actions = None;
        for &thread in threads {
            if actions.is_none() {
                process.borrow_mut().start(thread)?;
            }
            let block = process.borrow_mut().give_block(thread)?;
            let recording =
                self.recording(thread.tid(), &process.borrow(), block, Beginning::Thread)?;
            let actions = match &actions {
                Some(actions) => Actions::clone(actions),
                None => actions
                    .insert(Actions::of(thread, &process.borrow())?)
                    .clone(),
            };
            let mark = self.mark(&process.borrow(), block)?;
            let known = self.threads.entry(thread.tid()).or_default();
            known.pid = hodo_ptrace::process_of(thread.tid()).unwrap_or(thread.tid());
            known.process = Some(Rc::clone(process));
            known.block = Some(block);
            known.mark = Some(mark);
            known.actions = actions;
            known.recording = recording;
            known.beginning = Beginning::Thread;
            known.look_at_mask(thread)?;
        }
        Ok(())
    }

    /// Follows the threads until time is up or they have executed enough instructions, or until a signal or an error
    /// means the end. Then it leaves those that there are.
    ///
    /// # Errors
    /// What has failed.
    pub(super) fn follow_until(
        &mut self,
        interrupts: Interrupts,
        limit: Option<Limit>,
    ) -> Result<()> {
        let followed = self.follow_for_now(Some(interrupts), limit);
        let left = self.leave();
        followed.map(|_| ()).and(left)
    }

    /// Follows the threads until then. Returns whether threads are there that have executed enough instructions.
    pub(super) fn follow_for_now(
        &mut self,
        interrupts: Option<Interrupts>,
        limit: Option<Limit>,
    ) -> Result<bool> {
        self.program.set_interrupts(interrupts);
        self.limit = limit;
        self.reached = false;
        let mut followed = Ok(());
        while followed.is_ok() {
            followed = match hodo_follow::next(self) {
                Ok(None) => break,
                Ok(Some(report)) => hodo_follow::deal(self, report),
                Err(error) => Err(error),
            };
        }
        self.limit = None;
        followed.map(|()| self.reached && !self.threads.is_empty())
    }

    /// About how many instructions were executed.
    pub(super) fn executed_instructions(&self) -> u64 {
        let Some(recorder) = &self.recorder else {
            return 0;
        };
        let recorder = recorder.borrow();
        let mut sum = recorder.executed();
        for known in self.threads.values() {
            if let (Some(process), Some(block), Some(recording)) =
                (&known.process, known.block, &known.recording)
            {
                let process = process.borrow();
                let counters = process.counters();
                let working = recorder.working(recording, (process.memory(), &counters), block);
                // One that is gone has been counted.
                sum += working.map_or(0, |[instructions, _]| instructions);
            }
        }
        sum
    }

    /// Follows the threads without observing more than how many instructions they execute, and observes them by this
    /// recorder when they have executed enough. Returns whether they came so far.
    ///
    /// # Errors
    /// What has failed. The threads are left then.
    pub(super) fn count_until(
        &mut self,
        interrupts: Interrupts,
        limit: Limit,
        recorder: Option<Rc<RefCell<Recorder>>>,
    ) -> Result<bool> {
        let reached = self.follow_for_now(Some(interrupts), Some(limit));
        if !matches!(reached, Ok(true)) {
            self.leave()?;
            return reached;
        }
        self.change_recorder(recorder).map(|()| true)
    }

    /// Has all threads be observed by another recorder from here on, as if hodo had just attached to them.
    ///
    /// # Errors
    /// What has failed. The threads are left then.
    pub(super) fn change_recorder(
        &mut self,
        recorder: Option<Rc<RefCell<Recorder>>>,
    ) -> Result<()> {
        let changed = self.park_all().and_then(|()| self.change_over(recorder));
        if changed.is_err() {
            self.let_go();
        }
        changed
    }

    /// All threads wait: does that.
    fn change_over(&mut self, recorder: Option<Rc<RefCell<Recorder>>>) -> Result<()> {
        self.recorder = recorder;
        self.disarm_parked(|_| true)?;
        for (process, worker) in self.processes_of_parked() {
            self.renew(&process, worker)?;
        }
        self.resume_parked()
    }

    /// The threads of a process wait: they are observed, or not, as if hodo had just attached to it.
    pub(super) fn renew(&mut self, process: &Shared, worker: Stopped) -> Result<()> {
        // Where this fails, the process is gone.
        if process.borrow().release(worker).is_err() {
            return Ok(());
        }
        let parked = self.parked.iter().flatten().map(|(&thread, _)| thread);
        let is_of = |&thread: &Stopped| {
            let of = self.process(thread);
            of.is_some_and(|of| Rc::ptr_eq(&of, process))
        };
        let threads: Vec<Stopped> = parked.filter(is_of).collect();
        let new = self.space(worker, process.borrow().depth())?;
        self.begin_threads(&threads, &Rc::new(RefCell::new(new)))
    }

    /// Lets threads on that wait, after what they were in was renewed.
    pub(super) fn resume_parked(&mut self) -> Result<()> {
        for thread in self.parked.take().unwrap_or_default().into_keys() {
            // If its process is stopped as a whole, that is reported again.
            match thread.interrupt().and_then(|()| thread.cont(0)) {
                Err(error) if !is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Empties tables of targets in which a target had no room. No thread may be between what it reads there, so all
    /// have to wait for that.
    ///
    /// # Errors
    /// What has failed.
    pub(super) fn make_room(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.crowded) {
            return Ok(());
        }
        self.park_all()?;
        for (process, _) in self.processes_of_parked() {
            process.borrow_mut().make_room()?;
        }
        self.let_parked_on()
    }

    /// Deals with a report, if there is one. Returns whether there was.
    fn hear(&mut self) -> Result<bool> {
        match Report::any(false) {
            Ok(Some(report)) => hodo_follow::deal(self, report).map(|()| true),
            Ok(None) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                self.threads.clear();
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Leaves all processes: they run on untraced, as if hodo had never been there.
    ///
    /// # Errors
    /// What could not be done.
    pub(super) fn leave(&mut self) -> Result<()> {
        let parked = self.park_all();
        self.let_go();
        parked
    }

    /// Has all threads wait, before instructions of the program.
    pub(super) fn park_all(&mut self) -> Result<()> {
        self.parked = Some(Parked::new());
        if let Some(thread) = self.stuck.take() {
            match self.unstick(thread) {
                Err(gone) if is_gone(&gone) => {}
                unstuck => unstuck?,
            }
        }
        self.park_at_markers()?;
        self.ask_all();
        let mut failed = Ok(());
        let mut last = Instant::now();
        let mut together = TOGETHER;
        while self.waits_for_some() {
            let heard = self.hear_and_ask().or_else(|error| {
                // The others are left in any case.
                let thread = self.stuck.take().context(format!("{error:#}"))?;
                match self.unstick(thread) {
                    Err(gone) if is_gone(&gone) => {}
                    unstuck => unstuck?,
                }
                failed = Err(error);
                anyhow::Ok(true)
            });
            if heard? {
                last = Instant::now();
            } else if last.elapsed() < ALONE {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                self.let_on(together)?;
                together = (together * 2).min(LONGEST);
                last = Instant::now();
            }
        }
        failed
    }

    fn waits_for_some(&self) -> bool {
        let parked = self.parked.iter().flatten().count();
        // Those that are about to execute a program come later, as others.
        parked < self.threads.len()
    }

    pub(super) fn is_parked(&self, tid: i32) -> bool {
        let parked = self.parked.as_ref();
        parked.is_some_and(|parked| parked.keys().any(|thread| thread.tid() == tid))
    }

    /// Asks those to stop that do not wait yet.
    fn ask_all(&self) {
        for &tid in self.threads.keys().filter(|&&tid| !self.is_parked(tid)) {
            self.ask(tid);
        }
    }

    /// Asks a thread to stop, unless another one waits for it to execute a program.
    fn ask(&self, tid: i32) {
        let known = self.threads.get(&tid);
        if known.is_some_and(|known| !known.spawning) && !self.is_parked(tid) {
            // It may have ended; that is reported.
            let _ = stops::interrupt(tid);
        }
    }

    fn hear_and_ask(&mut self) -> Result<bool> {
        let report = match Report::any(false) {
            Ok(Some(report)) => report,
            Ok(None) => return Ok(false),
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                self.threads.clear();
                return Ok(true);
            }
            Err(error) => return Err(error.into()),
        };
        let tid = report.tid();
        if report.stopped().is_none()
            && let Some(parked) = &mut self.parked
        {
            // It was killed.
            parked.retain(|thread, _| thread.tid() != tid);
        }
        hodo_follow::deal(self, report)?;
        self.ask(tid);
        Ok(true)
    }

    /// A thread has stopped because it was asked to: it waits, unless it has to deal with a signal of its own first.
    pub(super) fn park(&mut self, thread: Stopped, group: bool) -> Result<()> {
        let tid = thread.tid();
        let own = OWN.iter().fold(0, |set, &signal| set | stops::bit(signal));
        if !group && hodo_ptrace::pending(tid) & own & !thread.signal_mask()? != 0 {
            return self.go(thread, 0);
        }
        stops::restart_call(thread)?;
        let mut regs = thread.regs()?;
        if let Some(process) = self.process(thread)
            && self.show(thread, &process, &mut regs, false)?
        {
            thread.set_regs(&regs)?;
        }
        if let Some(known) = self.threads.get_mut(&tid) {
            known.call = None;
        }
        self.take(thread)?;
        if let Some(parked) = &mut self.parked {
            parked.insert(thread, group);
        }
        Ok(())
    }

    /// Leaves a process that was just forked, and is not observed.
    pub(super) fn leave_child(&mut self, thread: Stopped, process: &Shared) -> Result<()> {
        stops::restart_call(thread)?;
        let mut regs = thread.regs()?;
        if self.show(thread, process, &mut regs, false)? {
            thread.set_regs(&regs)?;
        }
        if let Some(known) = self.threads.remove(&thread.tid()) {
            known.actions.disarm(thread, &process.borrow())?;
        }
        process.borrow().release(thread)?;
        thread.set_block(0, 0, 0)?;
        thread.detach()
    }

    /// Leaves all threads that have this memory, while this thread is before an instruction, and reaches that again.
    /// It may be one of them.
    ///
    /// # Errors
    /// What could not be done.
    pub(super) fn leave_memory(&mut self, thread: Stopped, memory: &Shared) -> Result<()> {
        self.stuck = Some(thread);
        self.park_all()?;
        let mut parked = self.parked.take().unwrap_or_default();
        let is_leaving = |&other: &Stopped| {
            let process = self.process(other);
            process.is_some_and(|process| Rc::ptr_eq(&process, memory))
        };
        let mut leaving: Vec<Stopped> = parked.keys().copied().filter(is_leaving).collect();
        // It wants to trace others of them, which must have been left by then.
        leaving.sort_by_key(|&other| other == thread);
        for &other in &leaving {
            parked.remove(&other);
            if let Some(known) = self.threads.remove(&other.tid()) {
                // Where this fails, the process is gone.
                let _ = known.actions.disarm(other, &memory.borrow());
            }
        }
        if let Some(&worker) = leaving.first() {
            let _ = memory.borrow().release(worker);
        }
        for other in leaving {
            let _ = other.set_block(0, 0, 0);
            let _ = other.detach();
        }
        self.parked = Some(parked);
        self.let_parked_on()
    }

    /// Leaves a thread that has the memory of its maker, while that waits for it to execute a program. Until then, the
    /// memory is lent.
    ///
    /// # Errors
    /// What could not be done.
    pub(super) fn lend(&mut self, thread: Stopped, process: &Shared) -> Result<()> {
        let mut regs = thread.regs()?;
        if self.show(thread, process, &mut regs, false)? {
            thread.set_regs(&regs)?;
        }
        self.take(thread)?;
        if let Some(known) = self.threads.remove(&thread.tid()) {
            known.actions.disarm(thread, &process.borrow())?;
            if let Some(block) = known.block {
                process.borrow_mut().take_block(block);
            }
        }
        process.borrow_mut().lend(thread)?;
        thread.set_block(0, 0, 0)?;
        thread.detach()
    }

    /// A thread with which something could not be done: it waits, too.
    fn unstick(&mut self, thread: Stopped) -> Result<()> {
        let mut regs = thread.regs()?;
        let stop = self.process(thread).and_then(|process| {
            let process = process.borrow();
            process.stop(regs.pc().wrapping_sub(1))
        });
        match stop {
            Some(Stop::Exit(at) | Stop::Call(at)) => regs.set_pc(at),
            Some(Stop::Changed(check)) => regs.set_pc(check.pc),
            // It reaches the branch again, whose target was looked up in vain.
            Some(Stop::Miss(_)) => {
                regs.set_pc(regs.pc() - 1);
                if let Some(process) = self.process(thread) {
                    self.show(thread, &process, &mut regs, true)?;
                }
            }
            None => {}
        }
        thread.set_regs(&regs)?;
        self.park(thread, false)
    }

    /// Lets those on for some time that wait, for others may wait for them: who has called `vfork` does.
    fn let_on(&mut self, time: Duration) -> Result<()> {
        self.let_parked_on()?;
        let begun = Instant::now();
        while begun.elapsed() < time {
            if !self.hear()? {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        self.parked = Some(Parked::new());
        self.park_at_markers()?;
        self.ask_all();
        Ok(())
    }

    fn let_parked_on(&mut self) -> Result<()> {
        for (thread, group) in self.parked.take().unwrap_or_default() {
            let resumed = match group {
                true => thread.listen(),
                false => thread.cont(0),
            };
            match resumed {
                Err(error) if !is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// The processes of threads that wait, and a thread of each.
    pub(super) fn processes_of_parked(&self) -> Vec<(Shared, Stopped)> {
        let mut processes: Vec<(Shared, Stopped)> = Vec::new();
        for &thread in self.parked.iter().flatten().map(|(thread, _)| thread) {
            if let Some(process) = self.process(thread)
                && !processes
                    .iter()
                    .any(|(known, _)| Rc::ptr_eq(known, &process))
            {
                processes.push((process, thread));
            }
        }
        processes
    }

    /// All threads wait: takes back what was changed, and lets them go on untraced.
    pub(super) fn let_go(&mut self) {
        // Where this fails, the process is gone.
        let _ = self.disarm_parked(|_| true);
        let processes = self.processes_of_parked();
        let mut parked = self.parked.take().unwrap_or_default();
        for (process, worker) in processes {
            // Where this fails, the process is gone.
            if let Ok(group) = process.borrow().release(worker) {
                parked.insert(worker, group);
            }
        }
        for thread in parked.into_keys() {
            let _ = thread.set_block(0, 0, 0);
            let _ = thread.detach();
        }
        self.threads.clear();
    }
}
