//! A recording of a program, from its start to its end.

use crate::options::{Exit, RecordOptions};
use crate::setup::{Program, Setup};
use crate::trace_dir::TraceDir;
use crate::{events, reserve, tracer};
use anyhow::{Context, Result, bail};
use hodo_trace::told_lost;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How a recording ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// How the program ended.
    pub exit: Exit,
    /// What to say of probes that were never placed: they name no place of any file that was loaded.
    pub unplaced: Vec<String>,
}

/// Chunks that are given their place on the disk ahead of the program: at first, and at most.
const AHEAD: (u64, u64) = (4, 1024);

/// Runs a program and records its calls into `place`, which is that of the options. Returns how it ended.
///
/// # Errors
/// If the program or the trace directory cannot be used; nothing has run then.
pub fn record(options: &RecordOptions, place: TraceDir) -> Result<Ended> {
    let name = options
        .command
        .first()
        .context("there is no program to run")?;
    let program = hodo_ptrace::launch::find_program(name)?;
    heed_no_limits();
    reserve::hold();
    // Signals from the terminal are for the program; hodo ends when it does, and stops when it does: if it stopped
    // first, the program could not tidy up the terminal before. SAFETY: ignoring a signal runs no code.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGQUIT, libc::SIG_IGN);
        libc::signal(libc::SIGTSTP, libc::SIG_IGN);
    }
    let Setup {
        mut session,
        modules,
        selection,
    } = Setup::new(options, place, &Program::file(&program))?;
    let child = hodo_ptrace::launch::fork(&program, &options.command, options.keep_pid)?;
    let done = Arc::new(AtomicBool::new(false));
    // A program that has hodo's own process id gets what is sent to that.
    let forward = hodo_ptrace::signals::Forward::start((!options.keep_pid).then_some(child.pid));
    let events = Arc::clone(&session.events);
    let mut tracer = tracer::Tracer::new(options, &mut session, modules, selection, child.pid)?;
    tracer.tell_signals(forward.seen());
    let outcome = std::thread::scope(|scope| {
        let _end = Populating::start(scope, &events, &done);
        child.go().and_then(|failure| tracer.run(failure))
    });
    drop(forward);
    let outcome = outcome?;
    if let Some(error) = outcome.failure {
        bail!("cannot run {}: {error}", program.display());
    }
    tell_lost(&outcome, &events);
    Ok(Ended {
        exit: outcome.exit,
        unplaced: outcome.unplaced,
    })
}

/// Limits on hodo's own resources are raised as far as that is allowed, and what they forbid then is an error of a
/// system call, not hodo's end.
pub fn heed_no_limits() {
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    hodo_ptrace::limits::raise_own();
}

/// Says how many records were lost, and why, as far as that is known.
pub fn tell_lost(outcome: &tracer::Outcome, events: &events::Events) {
    if outcome.lost > 0 {
        warn_user!("hodo: {}", told_lost(outcome.lost, outcome.events));
        match events.stuck() {
            Some(why) => warn_user!("hodo: {why}"),
            None if hodo_ptrace::limits::is_address_space_limited() => warn_user!(
                "hodo: the limit on address space (ulimit -v) leaves little of it for the trace: raise it for the whole of it"
            ),
            None => {}
        }
    }
}

/// The thread that keeps chunks ready. It ends when this is dropped: whatever happens to a recording, it must.
pub struct Populating<'a> {
    thread: Option<std::thread::Thread>,
    done: &'a AtomicBool,
}

impl<'a> Populating<'a> {
    pub fn start<'scope>(
        scope: &'scope std::thread::Scope<'scope, '_>,
        events: &'scope events::Events,
        done: &'a AtomicBool,
    ) -> Self
    where
        'a: 'scope,
    {
        let started = std::thread::Builder::new().spawn_scoped(scope, || populate(events, done));
        // Where there can be no more threads (ulimit -u), targets get their pages from the kernel one by one.
        let thread = started.ok().map(|handle| handle.thread().clone());
        if thread.is_none() {
            events.grow_whole();
        }
        Self { thread, done }
    }
}

impl Drop for Populating<'_> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

/// Keeps chunks ready ahead of the program, the more the faster it uses them.
pub fn populate(events: &events::Events, done: &AtomicBool) {
    let mut ready = 0;
    let mut last = 0;
    let mut ahead = AHEAD.0;
    let mut has_room = true;
    while !done.load(Ordering::Acquire) {
        events.grow();
        events.tell_time();
        let used = events.chunks();
        // No more than were used so far: most programs end soon, and chunks that nobody fills cost as much as others.
        let most = used.clamp(AHEAD.0, AHEAD.1);
        ahead = (ahead / 2).max((used - last) * 4).clamp(AHEAD.0, most);
        last = used;
        let want = used + ahead;
        if has_room && want > ready {
            // On a full disk there is nothing to prepare, but what else stands in the way need not concern the targets.
            has_room = events.populate(ready.max(used)..want);
            ready = want;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
}
