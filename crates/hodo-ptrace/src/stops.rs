//! Stops all threads of a running process, and resumes them so that they notice nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::arch::{self, Regs};
use crate::request;
use crate::run::let_go;
use crate::status::{has_signal, ignored, is_ending, process_of, status, tasks};
use crate::stopped::{Report, Stopped};
use crate::waits::{self, Noted};

/// Signals that an instruction raises itself.
pub const OWN: [i32; 5] = [
    libc::SIGTRAP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
];

/// The signal by which stops at system calls are reported (`PTRACE_O_TRACESYSGOOD`).
pub const SYSTEM_CALL: i32 = libc::SIGTRAP | 0x80;

/// A signal's bit in a set of them.
pub fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// How long a thread may take to stop.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// For so long the others are stopped while it does not,
const ALONE: Duration = Duration::from_millis(200);

/// and for so long they run then at first.
const TOGETHER: Duration = Duration::from_millis(50);

/// Threads of one process that are stopped.
#[derive(Debug)]
pub struct Stops {
    pid: i32,
    options: i32,
    /// By thread: whether the process is stopped as a whole (SIGSTOP).
    stopped: BTreeMap<Stopped, bool>,
    /// Those that have been asked to stop, and have not yet.
    asked: BTreeSet<i32>,
    /// Those that make a call again, though the kernel does not have them do so.
    again: BTreeSet<Stopped>,
    /// The end of the process, if that has come here.
    end: Option<Report>,
}

impl Stops {
    /// No thread of process `pid` yet; `options` are `PTRACE_O_*`.
    pub fn new(pid: i32, options: i32) -> Self {
        Self {
            pid,
            options,
            stopped: BTreeMap::new(),
            asked: BTreeSet::new(),
            again: BTreeSet::new(),
            end: None,
        }
    }

    /// Their process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The threads.
    pub fn threads(&self) -> impl Iterator<Item = Stopped> {
        self.stopped.keys().copied()
    }

    /// The one with this number, if it is among them.
    pub fn get(&self, tid: i32) -> Option<Stopped> {
        self.stopped.get_key_value(&tid).map(|(&thread, _)| thread)
    }

    /// A thread in which system calls can be made.
    pub fn worker(&self) -> Option<Stopped> {
        self.threads().next()
    }

    /// Whether the process is found stopped as a whole.
    pub fn set_group(&mut self, thread: Stopped, group: bool) {
        self.stopped.insert(thread, group);
    }

    /// Stops all threads that there are, and those that they make meanwhile.
    ///
    /// # Errors
    /// If one cannot be traced, or does not stop.
    pub fn stop_all(&mut self) -> Result<()> {
        loop {
            let new: Vec<i32> = tasks(self.pid)?
                .into_iter()
                .filter(|tid| !self.stopped.contains_key(tid))
                .collect();
            for tid in new {
                match request::seize(tid, self.options) {
                    Ok(()) => {
                        self.asked.insert(tid);
                        interrupt(tid)?;
                    }
                    // It has ended, or is about to; the first thread stays to be seen until all have.
                    Err(_) if is_ending(tid) => {}
                    Err(error) => {
                        return Err(error).with_context(|| {
                            format!("thread {tid} of process {} cannot be traced", self.pid)
                        });
                    }
                }
            }
            if self.asked.is_empty() {
                break;
            }
            self.wait_for_all()?;
        }
        if self.stopped.is_empty() {
            bail!("process {} has ended", self.pid);
        }
        for &thread in self.stopped.keys() {
            let was_in_call = thread.regs()?.may_go_back();
            restart_call(thread)?;
            if was_in_call && !thread.regs()?.may_go_back() {
                self.again.insert(thread);
            }
        }
        Ok(())
    }

    /// Returns whether a thread is about to make the call again that it was in when it was stopped.
    pub fn makes_again(&self, thread: Stopped) -> bool {
        self.again.contains(&thread)
    }

    /// Waits until those that were asked stop, and those that they make meanwhile.
    fn wait_for_all(&mut self) -> Result<()> {
        let begun = Instant::now();
        let mut last = begun;
        let mut together = TOGETHER;
        let mut tries = 0u32;
        while !self.asked.is_empty() {
            if self.hear(true)? {
                last = Instant::now();
                tries = 0;
            } else if last.elapsed() < ALONE {
                pause(&mut tries);
            } else {
                // The end of a first thread is reported when all have ended.
                self.asked.retain(|&tid| !is_ending(tid));
                if let Some(&tid) = self.asked.first() {
                    if together > TOGETHER && begun.elapsed() > PATIENCE {
                        bail!(
                            "thread {tid} of process {} does not stop: it is in state {} in the kernel",
                            self.pid,
                            status(tid, "State:").unwrap_or_default()
                        );
                    }
                    self.let_on(together)?;
                    together = (together * 2).min(2 * ALONE);
                    last = Instant::now();
                }
            }
        }
        Ok(())
    }

    /// Lets stopped threads run for some time, for those that do not stop wait for them, perhaps: what a child of vfork
    /// does before it executes a program may. Then they are asked again.
    fn let_on(&mut self, time: Duration) -> Result<()> {
        self.restart_calls();
        self.resume();
        let stopped = std::mem::take(&mut self.stopped).into_keys();
        self.asked.extend(stopped.map(Stopped::tid));
        let begun = Instant::now();
        let mut tries = 0;
        while begun.elapsed() < time {
            if !self.hear(false)? {
                pause(&mut tries);
            }
        }
        for &tid in &self.asked {
            // It may have ended; whoever waits for it sees that.
            let _ = interrupt(tid);
        }
        Ok(())
    }

    /// Deals with what has come of those that were asked, if they are to `stop`: they do then. Else they run on.
    /// Returns whether anything has come.
    fn hear(&mut self, stop: bool) -> Result<bool> {
        let mut any = false;
        for tid in self.asked.clone() {
            let Some(report) = wait_for(tid, Duration::ZERO)? else {
                continue;
            };
            any = true;
            let Some(thread) = report.stopped() else {
                self.asked.remove(&tid);
                if tid == self.pid {
                    self.end = Some(report);
                }
                continue;
            };
            let signal = report.signal();
            let mut deliver = 0;
            match report.event() {
                libc::PTRACE_EVENT_STOP => {
                    let group = report.is_group_stop();
                    if stop {
                        self.asked.remove(&tid);
                        self.stopped.insert(thread, group);
                        continue;
                    }
                    if group {
                        thread.listen()?;
                        continue;
                    }
                    restart_call(thread)?;
                }
                libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                    let child = i32::try_from(thread.event_message()?)?;
                    if process_of(child) == Some(self.pid) {
                        self.asked.insert(child);
                    } else if let Some(child) = wait_for(child, PATIENCE)?.and_then(Report::stopped)
                    {
                        // Made before hodo was there.
                        child.detach()?;
                    }
                }
                libc::PTRACE_EVENT_EXEC => bail!(
                    "process {} is just executing another program; try again",
                    self.pid
                ),
                0 if signal != libc::SIGTRAP | 0x80 => {
                    restart_ignored(thread, signal, false)?;
                    deliver = signal;
                }
                _ => {}
            }
            if stop {
                thread.interrupt()?;
            }
            thread.cont(deliver)?;
        }
        Ok(any)
    }

    fn restart_calls(&self) {
        for (&thread, &group) in &self.stopped {
            if !group {
                let _ = restart_call(thread);
            }
        }
    }

    /// Lets all threads go on, traced.
    pub fn resume(&self) {
        for (&thread, &group) in &self.stopped {
            // A thread may be killed at any time; its end is reported by itself.
            let _ = match group {
                true => thread.listen(),
                false => thread.cont(0),
            };
        }
    }

    /// Lets all threads go on, untraced. Returns the end of the process, if that has come here: it is not reported
    /// again.
    pub fn detach(mut self) -> Option<Report> {
        let begun = Instant::now();
        let mut tries = 0;
        loop {
            self.restart_calls();
            for thread in std::mem::take(&mut self.stopped).into_keys() {
                let _ = thread.detach();
            }
            // Where something is wrong with one, others are about to stop.
            if self.asked.is_empty() || begun.elapsed() > ALONE {
                break;
            }
            match self.hear(true) {
                Ok(true) => {}
                Ok(false) => pause(&mut tries),
                Err(_) => break,
            }
        }
        for tid in self.asked {
            let _ = let_go(tid);
        }
        self.end
    }
}

/// Waits for a thread to stop or end. `None`: it does neither.
///
/// # Errors
/// If there is no such thread, or it is not traced.
pub fn wait_for(tid: i32, patience: Duration) -> Result<Option<Report>> {
    let begun = Instant::now();
    let mut tries = 0u32;
    loop {
        match Report::of(tid, false) {
            Ok(Some(report)) => return Ok(Some(report)),
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                return Err(error).with_context(|| format!("waiting for thread {tid}"));
            }
            _ => {}
        }
        if begun.elapsed() > patience {
            return Ok(None);
        }
        pause(&mut tries);
    }
}

/// Between two tries: short at first.
fn pause(tries: &mut u32) {
    *tries += 1;
    match tries {
        0..50 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(50)),
    }
}

/// Brings a stopped thread that has made single steps to a stop from which it does not go on with another: if hodo is
/// killed now, that step would end the process.
///
/// # Errors
/// If the thread is gone.
pub fn rest(thread: Stopped) -> Result<()> {
    loop {
        thread.interrupt()?;
        thread.cont(0)?;
        match wait_for(thread.tid(), PATIENCE)? {
            Some(report) if report.stopped().is_none() => {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH).into());
            }
            // It is about to end.
            Some(report) if report.event() == libc::PTRACE_EVENT_EXIT => {}
            _ => return Ok(()),
        }
    }
}

/// Some system calls (`epoll_wait`, `semtimedop`, reading from a socket with a timeout) are not restarted by the kernel
/// when a tracer has stopped them, but return EINTR, which the program would not see alone. If this thread, stopped by
/// [`interrupt`], has such a result, it makes its call again; one that waits for a certain time waits for what is left
/// of it (see [`crate::waits`]).
///
/// # Errors
/// If the thread is gone.
pub fn restart_call(thread: Stopped) -> Result<()> {
    let noted = waits::take(thread.tid());
    let mut regs = thread.regs()?;
    if !is_broken_off(&regs) || has_signal(thread.tid()) {
        return Ok(());
    }
    let kept = regs.first_argument(thread).ok();
    let argument = kept
        .or_else(|| noted.as_ref()?.first_argument(&regs))
        .or_else(|| waits::only_epoll(thread.tid(), &regs));
    if let Some(wait) = noted.and_then(Noted::wait) {
        wait.shorten(thread, &mut regs, argument)?;
    }
    arch::call_again(thread, regs, argument)
}

/// Has a thread that runs stop at once, and remembers in which call it has waited, and for how long, if this breaks it
/// off.
///
/// # Errors
/// If the thread is gone.
pub fn interrupt(tid: i32) -> Result<()> {
    waits::note(tid);
    request::interrupt(tid)
}

fn is_broken_off(regs: &Regs) -> bool {
    regs.result() == -i64::from(libc::EINTR)
        && (regs.system_call()).is_some_and(|call| call != libc::SYS_close)
}

/// Without a tracer, the kernel forgets a signal that is ignored before anybody wakes up for it. If it has broken off
/// such a call of this thread, which is stopped because of it, the call is made again; but one that waits for a certain
/// time only if that was not done `lately`, for with many such signals it would never come to its end. Returns whether
/// it was one of these.
///
/// # Errors
/// If the thread is gone.
pub fn restart_ignored(thread: Stopped, signal: i32, lately: bool) -> Result<bool> {
    let is_signal = (1..=64).contains(&signal);
    let regs = thread.regs()?;
    if !is_signal || !is_broken_off(&regs) || 1 << (signal - 1) & ignored(thread.tid()) == 0 {
        return Ok(false);
    }
    let ends = ends_by_itself(thread);
    if !ends || !lately {
        restart_call(thread)?;
    }
    Ok(ends)
}

/// May the system call that a stopped thread is in end after a certain time?
fn ends_by_itself(thread: Stopped) -> bool {
    let Ok(regs) = thread.regs() else {
        return true;
    };
    let (_, arguments) = regs.call();
    match regs.system_call() {
        // Any negative number of milliseconds is for ever.
        Some(number) if [arch::EPOLL_WAIT, libc::SYS_epoll_pwait].contains(&number) => {
            arguments[3] as i32 >= 0
        }
        Some(libc::SYS_epoll_pwait2 | libc::SYS_semtimedop) => arguments[3] != 0,
        Some(libc::SYS_rt_sigtimedwait) => arguments[2] != 0,
        Some(libc::SYS_semop) => false,
        _ => true,
    }
}
