//! Stops all threads at once.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Tracer;
use hodo_ptrace as ptrace;
use hodo_ptrace::stops;
use hodo_ptrace::stops::{OWN, PATIENCE, bit};

/// Threads that are stopped, and whether their process is stopped as a whole.
pub(super) type Stopped = BTreeMap<i32, bool>;

/// Has a thread not ended?
pub(super) fn exists(tid: i32) -> bool {
    ptrace::status(tid, "State:").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// Has so much time gone by since now?
pub(super) fn after(time: Duration) -> impl FnMut() -> bool {
    let begun = Instant::now();
    move || begun.elapsed() >= time
}

/// For so long all others are stopped while no other stops,
const ALONE: Duration = Duration::from_secs(1);
/// and for so long they run then at first, until they are stopped again.
const TOGETHER: Duration = Duration::from_millis(50);

/// Says who is waited for.
pub(super) fn tell_late<'a>(tids: impl Iterator<Item = &'a i32>) {
    let late: Vec<i32> = tids.copied().collect();
    warn_user!("hodo: waiting for threads that do not stop: {late:?}");
}

impl Tracer<'_> {
    /// Stops these threads, and those that they make meanwhile.
    pub(super) fn stop(&mut self, wanted: &BTreeSet<i32>) -> Result<Stopped> {
        self.stop_within(wanted, None).map(|(stopped, _)| stopped)
    }

    /// Asks threads to stop. What keeps its maker from stopping goes on until it executes a program or ends.
    fn interrupt_all(&self, wanted: &BTreeSet<i32>, asked: &mut BTreeSet<i32>) {
        for &tid in wanted {
            if !self.is_awaited(tid) && asked.insert(tid) {
                let _ = stops::interrupt(tid);
            }
        }
    }

    /// If a thread's own signal has to be dealt with first (one of our breakpoints), lets it go on. Returns whether
    /// there is one.
    fn let_due_on(&self, wanted: &BTreeSet<i32>, stopped: &mut Stopped) -> bool {
        let Some(&tid) = wanted.iter().find(|&&tid| self.is_due(tid)) else {
            return false;
        };
        stopped.remove(&tid);
        let _ = ptrace::interrupt(tid).and_then(|()| ptrace::cont(tid, 0));
        true
    }

    /// The same, for some time at most. Returns whether all have stopped; the others may yet.
    pub(super) fn stop_within(
        &mut self,
        wanted: &BTreeSet<i32>,
        limit: Option<Duration>,
    ) -> Result<(Stopped, bool)> {
        let mut late = false;
        let since = Instant::now();
        let mut stopped = Stopped::new();
        let mut asked = BTreeSet::new();
        let mut ended: BTreeSet<i32> = BTreeSet::new();
        let mut known: BTreeSet<i32> = self.threads.keys().copied().collect();
        let mut wanted = wanted.clone();
        let mut begun = Instant::now();
        let mut alone = after(ALONE);
        let mut together = TOGETHER;
        loop {
            // What comes of these while they are being stopped belongs to them.
            let now: BTreeSet<i32> = self.threads.keys().copied().collect();
            wanted.extend(now.difference(&known));
            wanted.retain(|tid| now.contains(tid) && !ended.contains(tid));
            known = now;
            self.interrupt_all(&wanted, &mut asked);
            if wanted.iter().all(|tid| stopped.contains_key(tid)) {
                match self.let_due_on(&wanted, &mut stopped) {
                    true => continue,
                    false => break,
                }
            }
            if limit.is_some_and(|limit| since.elapsed() > limit) {
                late = true;
                break;
            }
            if alone() {
                // It waits for others that are stopped, perhaps: what a child of vfork does before it executes a
                // program may.
                self.let_on(&mut stopped);
                asked.clear();
                self.serve(after(together))?;
                together = (together * 2).min(ALONE);
                alone = after(ALONE);
                continue;
            }
            if begun.elapsed() > PATIENCE {
                tell_late(wanted.iter().filter(|tid| !stopped.contains_key(tid)));
                begun = Instant::now();
            }
            let mut status = 0;
            // SAFETY: waitpid writes one int.
            let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::WNOHANG) };
            match tid {
                -1 => break,
                0 => {
                    std::thread::sleep(Duration::from_micros(50));
                    let late = wanted.iter().filter(|tid| !stopped.contains_key(tid));
                    ended.extend(late.filter(|&&tid| self.is_first_and_ended(tid)));
                }
                _ => {
                    if ended.remove(&tid) {
                        // Another thread has executed a program, and has this one's number now.
                        wanted.insert(tid);
                    }
                    let is_stop =
                        libc::WIFSTOPPED(status) && status >> 16 == libc::PTRACE_EVENT_STOP;
                    let is_wanted = wanted.contains(&tid) && !self.is_awaited(tid);
                    if is_stop && is_wanted && self.has_waiting(tid) {
                        // Nobody else can say later where the signal came from. Its step is stopped, too.
                        let _ = self.go(tid, 0);
                        continue;
                    }
                    if is_stop && is_wanted && !self.is_in_handler(tid)? {
                        stopped.insert(tid, libc::WSTOPSIG(status) != libc::SIGTRAP);
                        alone = after(ALONE);
                        continue;
                    }
                    if !is_stop || !is_wanted {
                        self.deal(tid, status)?;
                        // What a child executes is planned here, which takes its time.
                        alone = after(ALONE);
                        begun = Instant::now();
                    }
                    if is_wanted && self.threads.contains_key(&tid) {
                        let _ = ptrace::interrupt(tid);
                    }
                }
            }
        }
        self.rest(&mut stopped);
        Ok((stopped, !late))
    }

    /// Puts stopped threads in order: no single step is under way, and calls that were broken off will be made again.
    fn rest(&mut self, stopped: &mut Stopped) {
        stopped.retain(|tid, _| self.threads.contains_key(tid));
        for &tid in stopped.keys() {
            let _ = self.end_step(tid);
        }
        for (&tid, &group) in &*stopped {
            if !group {
                let _ = stops::restart_call(tid);
            }
        }
    }

    /// Lets stopped threads run, and deals with what comes of them, until they are to stop again.
    pub(super) fn run_on(
        &mut self,
        tids: &BTreeSet<i32>,
        stopped: &mut Stopped,
        until: impl FnMut() -> bool,
    ) -> Result<()> {
        self.run_within(tids, stopped, until, None).map(drop)
    }

    /// The same; they have some time to stop. Returns whether all have.
    pub(super) fn run_within(
        &mut self,
        tids: &BTreeSet<i32>,
        stopped: &mut Stopped,
        until: impl FnMut() -> bool,
        limit: Option<Duration>,
    ) -> Result<bool> {
        let before: BTreeSet<i32> = self.threads.keys().copied().collect();
        for &tid in tids {
            let _ = match stopped.remove(&tid) {
                Some(true) => ptrace::request(libc::PTRACE_LISTEN, tid, 0, 0),
                Some(false) => self.go(tid, 0),
                None => continue,
            };
        }
        self.serve(until)?;
        let made = self.threads.keys().filter(|tid| !before.contains(tid));
        let wanted = tids.iter().chain(made).copied().collect();
        let (mut more, all) = self.stop_within(&wanted, limit)?;
        stopped.append(&mut more);
        Ok(all)
    }

    /// Deals with what comes of threads that run. One with a signal on its way does not get any further before that is
    /// delivered.
    fn serve(&mut self, mut until: impl FnMut() -> bool) -> Result<()> {
        while !until() {
            let mut status = 0;
            // SAFETY: waitpid writes one int.
            match unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::WNOHANG) } {
                -1 => break,
                0 => std::thread::sleep(Duration::from_micros(20)),
                tid => self.deal(tid, status)?,
            }
        }
        Ok(())
    }

    /// Lets threads go on that have been stopped for another one in vain.
    pub(super) fn let_on(&mut self, stopped: &mut Stopped) {
        for (tid, group) in std::mem::take(stopped) {
            // A thread may be killed at any time; its end is reported by itself.
            let _ = match group {
                true => ptrace::request(libc::PTRACE_LISTEN, tid, 0, 0),
                false => (self.end_step(tid))
                    .and_then(|_| stops::restart_call(tid))
                    .and_then(|()| self.go(tid, 0)),
            };
        }
    }

    /// Has one of our instructions raised a signal in a stopped thread that was not delivered yet?
    fn is_due(&self, tid: i32) -> bool {
        let signals = OWN.iter().fold(0, |set, &signal| set | bit(signal));
        let Some(space) = self.threads.get(&tid).and_then(|t| t.space.as_ref()) else {
            return false;
        };
        let Ok(regs) = ptrace::regs(tid) else {
            return false;
        };
        let space = space.borrow();
        let at = regs.breakpoint();
        let ours = space.holds(regs.pc()) || space.stub_at(at).is_some() || space.announces(at);
        ours && hodo_ptrace::pending(tid) & signals != 0
    }

    /// Does another thread wait until this one executes a program or ends (vfork)? It cannot be stopped before that.
    pub(super) fn is_awaited(&self, tid: i32) -> bool {
        let maker = self.threads.get(&tid).and_then(|thread| thread.awaited);
        maker.is_some_and(|maker| self.threads.contains_key(&maker))
    }

    /// Is a signal on its way to this thread that waits until our code is done?
    fn has_waiting(&self, tid: i32) -> bool {
        let thread = self.threads.get(&tid);
        thread.is_some_and(|thread| thread.contexts.waiting.is_some())
    }

    /// Has this thread ended, the first of its process? It is seen until all others have.
    pub(super) fn is_first_and_ended(&self, tid: i32) -> bool {
        let is_first = self.threads.get(&tid).is_some_and(|t| t.pid == tid);
        is_first && ptrace::status(tid, "State:").is_none_or(|state| state.starts_with(['Z', 'X']))
    }
}
