//! Stops all threads at once.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Tracer;
use hodo_ptrace as ptrace;
use hodo_ptrace::stops;
use hodo_ptrace::stops::{OWN, PATIENCE, bit};
use hodo_ptrace::{Report, Stopped};

/// Threads that were stopped together, and whether their process is stopped as a whole.
pub(super) type Halted = BTreeMap<Stopped, bool>;

/// Whether a thread has not ended.
pub(super) fn exists(tid: i32) -> bool {
    ptrace::status(tid, "State:").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// Returns whether this much time has passed since now.
pub(super) fn after(time: Duration) -> impl FnMut() -> bool {
    let begun = Instant::now();
    move || begun.elapsed() >= time
}

/// If no further thread stops, the others stay stopped for this long,
const ALONE: Duration = Duration::from_secs(1);
/// and then run for this long at first, until they are stopped again.
const TOGETHER: Duration = Duration::from_millis(50);

/// Reports which threads are waited for.
pub(super) fn tell_late<'a>(tids: impl Iterator<Item = &'a i32>) {
    let late: Vec<i32> = tids.copied().collect();
    warn_user!("hodo: waiting for threads that do not stop: {late:?}");
}

impl Tracer<'_> {
    /// Stops these threads, and those that they make in the meantime.
    pub(super) fn stop(&mut self, wanted: &BTreeSet<i32>) -> Result<Halted> {
        self.stop_within(wanted, None).map(|(halted, _)| halted)
    }

    /// Asks threads to stop. A thread that keeps its maker from stopping runs on until it executes a program or ends.
    fn interrupt_all(&self, wanted: &BTreeSet<i32>, asked: &mut BTreeSet<i32>) {
        for &tid in wanted {
            if !self.is_awaited(tid) && asked.insert(tid) {
                let _ = stops::interrupt(tid);
            }
        }
    }

    /// If a thread's own signal must be handled first (one of our breakpoints), lets that thread run on. Returns
    /// whether there is one.
    fn let_due_on(&self, wanted: &BTreeSet<i32>, halted: &mut Halted) -> bool {
        let Some(&due) =
            (halted.keys()).find(|due| wanted.contains(&due.tid()) && self.is_due(**due))
        else {
            return false;
        };
        halted.remove(&due);
        // It is not asked to stop: it would stop before its signal again. After the signal it is.
        let _ = due.cont(0);
        true
    }

    /// Stops all within a time limit. Returns whether all have stopped; the others may still do so.
    pub(super) fn stop_within(
        &mut self,
        wanted: &BTreeSet<i32>,
        limit: Option<Duration>,
    ) -> Result<(Halted, bool)> {
        self.stopping += 1;
        let done = self.stop_in_time(wanted, limit);
        self.stopping -= 1;
        done
    }

    fn stop_in_time(
        &mut self,
        wanted: &BTreeSet<i32>,
        limit: Option<Duration>,
    ) -> Result<(Halted, bool)> {
        let mut late = false;
        let since = Instant::now();
        let mut halted = Halted::new();
        let mut asked = BTreeSet::new();
        let mut ended: BTreeSet<i32> = BTreeSet::new();
        let mut known: BTreeSet<i32> = self.threads.keys().copied().collect();
        let mut wanted = wanted.clone();
        let mut begun = Instant::now();
        let mut alone = after(ALONE);
        let mut together = TOGETHER;
        loop {
            // Threads that these make while they are being stopped belong to them.
            let now: BTreeSet<i32> = self.threads.keys().copied().collect();
            wanted.extend(now.difference(&known));
            wanted.retain(|tid| now.contains(tid) && !ended.contains(tid));
            known = now;
            self.interrupt_all(&wanted, &mut asked);
            if wanted.iter().all(|tid| halted.contains_key(tid)) {
                match self.let_due_on(&wanted, &mut halted) {
                    true => continue,
                    false => break,
                }
            }
            if limit.is_some_and(|limit| since.elapsed() > limit) {
                late = true;
                break;
            }
            if alone() {
                // The thread may be waiting for others that are stopped: vfork's child may do so before it executes a
                // program.
                self.let_on(&mut halted);
                asked.clear();
                self.serve(after(together))?;
                together = (together * 2).min(ALONE);
                alone = after(ALONE);
                continue;
            }
            if begun.elapsed() > PATIENCE {
                tell_late(wanted.iter().filter(|tid| !halted.contains_key(*tid)));
                begun = Instant::now();
            }
            match Report::any(false) {
                Err(_) => break,
                Ok(None) => {
                    std::thread::sleep(Duration::from_micros(50));
                    let late = wanted.iter().filter(|tid| !halted.contains_key(*tid));
                    ended.extend(late.filter(|&&tid| self.is_first_and_ended(tid)));
                }
                Ok(Some(report)) => {
                    let tid = report.tid();
                    if ended.remove(&tid) {
                        // Another thread has executed a program, and now has this thread's number.
                        wanted.insert(tid);
                    }
                    let asked_for = report.stopped().filter(|_| report.is_asked_for());
                    let is_wanted = wanted.contains(&tid) && !self.is_awaited(tid);
                    if let Some(stopped) = asked_for.filter(|_| is_wanted) {
                        if self.has_waiting(tid) {
                            // Later, nobody else can tell where the signal came from.
                            let _ = self.go(stopped, 0);
                            continue;
                        }
                        if !self.is_in_handler(stopped)? {
                            halted.insert(stopped, report.is_group_stop());
                            alone = after(ALONE);
                            continue;
                        }
                    } else {
                        self.deal(report)?;
                        // If a child has executed a program, that was planned here, which takes time.
                        alone = after(ALONE);
                        begun = Instant::now();
                    }
                    if is_wanted && self.threads.contains_key(&tid) {
                        let _ = stops::interrupt(tid);
                    }
                }
            }
        }
        self.rest(&mut halted);
        Ok((halted, !late))
    }

    /// Has calls of stopped threads that were broken off restarted.
    fn rest(&self, halted: &mut Halted) {
        halted.retain(|stopped, _| self.threads.contains_key(&stopped.tid()));
        for (&stopped, &group) in &*halted {
            if !group {
                let _ = stops::restart_call(stopped);
            }
        }
    }

    /// Lets stopped threads run, and handles their reports, until they have to stop again.
    pub(super) fn run_on(
        &mut self,
        tids: &BTreeSet<impl Copy + Into<i32>>,
        halted: &mut Halted,
        until: impl FnMut() -> bool,
    ) -> Result<()> {
        self.run_within(tids, halted, until, None).map(drop)
    }

    /// Lets them run likewise, with a time limit for stopping. Returns whether all have stopped.
    pub(super) fn run_within(
        &mut self,
        tids: &BTreeSet<impl Copy + Into<i32>>,
        halted: &mut Halted,
        until: impl FnMut() -> bool,
        limit: Option<Duration>,
    ) -> Result<bool> {
        let before: BTreeSet<i32> = self.threads.keys().copied().collect();
        let tids: BTreeSet<i32> = tids.iter().map(|&tid| tid.into()).collect();
        for tid in &tids {
            let _ = match halted.remove_entry(tid) {
                Some((stopped, true)) => stopped.listen(),
                Some((stopped, false)) => self.go(stopped, 0),
                None => continue,
            };
        }
        self.stopping += 1;
        let served = self.serve(until);
        self.stopping -= 1;
        served?;
        let made = self.threads.keys().filter(|tid| !before.contains(tid));
        let wanted = tids.iter().chain(made).copied().collect();
        let (mut more, all) = self.stop_within(&wanted, limit)?;
        halted.append(&mut more);
        Ok(all)
    }

    /// Handles the reports of running threads. A thread with a pending signal does not get any further before that is
    /// delivered.
    fn serve(&mut self, mut until: impl FnMut() -> bool) -> Result<()> {
        while !until() {
            match Report::any(false) {
                Err(_) => break,
                Ok(None) => std::thread::sleep(Duration::from_micros(20)),
                Ok(Some(report)) => self.deal(report)?,
            }
        }
        Ok(())
    }

    /// Lets threads run on that were stopped in vain because of another one.
    pub(super) fn let_on(&mut self, halted: &mut Halted) {
        for (stopped, group) in std::mem::take(halted) {
            // A thread may be killed at any time; its end is reported separately.
            let _ = match group {
                true => stopped.listen(),
                false => stops::restart_call(stopped).and_then(|()| self.go(stopped, 0)),
            };
        }
    }

    /// Whether one of our instructions has raised a signal in a stopped thread that is not delivered yet.
    fn is_due(&self, stopped: Stopped) -> bool {
        let signals = OWN.iter().fold(0, |set, &signal| set | bit(signal));
        let thread = self.threads.get(&stopped.tid());
        let Some(space) = thread.and_then(|thread| thread.space.as_ref()) else {
            return false;
        };
        let Ok(regs) = stopped.regs() else {
            return false;
        };
        let space = space.borrow();
        let at = regs.breakpoint();
        let ours = space.holds(regs.pc()) || space.stub_at(at).is_some() || space.announces(at);
        ours && hodo_ptrace::pending(stopped.tid()) & signals != 0
    }

    /// Whether another thread waits until this one executes a program or ends (vfork). The other one cannot be stopped
    /// before that.
    pub(super) fn is_awaited(&self, tid: i32) -> bool {
        let maker = self.threads.get(&tid).and_then(|thread| thread.awaited);
        maker.is_some_and(|maker| self.threads.contains_key(&maker))
    }

    /// Whether a signal for this thread was held back until our code is done.
    fn has_waiting(&self, tid: i32) -> bool {
        let thread = self.threads.get(&tid);
        thread.is_some_and(|thread| thread.contexts.awaits(tid))
    }

    /// Whether this thread is the first of its process and has ended. It exists until all others have ended.
    pub(super) fn is_first_and_ended(&self, tid: i32) -> bool {
        let is_first = self.threads.get(&tid).is_some_and(|t| t.pid == tid);
        is_first && ptrace::status(tid, "State:").is_none_or(|state| state.starts_with(['Z', 'X']))
    }
}
