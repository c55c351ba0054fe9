//! A recording of a program, from its start to its end.

use crate::options::RecordOptions;
use crate::setup::{Program, Setup};
use crate::trace_dir::TraceDir;
use crate::{abandon, events, reserve, tracer};
use anyhow::{Context, Result, bail, ensure};
use hodo_follow::Exit;
use hodo_ptrace::threads::start_scoped;
use hodo_trace::told_lost;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How a recording ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// How the program ended.
    pub exit: Exit,
    /// Messages about probes that were never placed, because no loaded file has their places.
    pub unplaced: Vec<String>,
}

/// How many chunks are allocated on the disk ahead of the program: at first, and at most.
const AHEAD: (u64, u64) = (4, 1024);

/// Runs a program and records its calls into `place`, the trace directory of the options. Returns how the program
/// ended.
///
/// # Errors
/// If the program or the trace directory cannot be used; nothing has run then.
pub fn record(options: &RecordOptions, place: TraceDir) -> Result<Ended> {
    let name = options
        .command
        .first()
        .context("there is no program to run")?;
    let program = hodo_ptrace::launch::find_program(name)?;
    check_pages()?;
    heed_no_limits();
    reserve::hold();
    let planning = abandon::before_starting(place.removal());
    let setup = Setup::new(options, place, &[Program::file(&program)]);
    hodo_ptrace::signals::leave_terminal_to_program();
    drop(planning);
    hodo_symbols::fetch_no_more();
    let Setup {
        mut session,
        modules,
        selection,
    } = setup?;
    let child = hodo_ptrace::launch::fork(&program, &options.command, options.keep_pid)?;
    let done = Arc::new(AtomicBool::new(false));
    // A program with hodo's own process id receives what is sent to that id.
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
        let why = hodo_ptrace::launch::why_not(&program, &error);
        bail!("cannot run {}: {why}", program.display());
    }
    tell_lost(&outcome, &events);
    Ok(Ended {
        exit: outcome.exit,
        unplaced: outcome.unplaced,
    })
}

/// Checks that the kernel has pages of the size that hodo's memory in programs is made for. Kernels for AArch64 also
/// come with larger ones.
///
/// # Errors
/// If it has others.
pub fn check_pages() -> Result<()> {
    // SAFETY: sysconf only returns a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    fits(size.unsigned_abs())
}

fn fits(page: u64) -> Result<()> {
    ensure!(
        page == 4096,
        "this kernel has pages of {} KiB, and hodo can trace programs only under one with pages of 4 KiB: boot such a \
         kernel",
        page >> 10
    );
    Ok(())
}

/// Raises the limits on hodo's own resources as far as allowed. Reaching a limit is then an error of a system call, and
/// does not end hodo.
pub fn heed_no_limits() {
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    hodo_ptrace::limits::raise_own();
}

/// Reports how many records were lost, and why, if that is known.
pub fn tell_lost(outcome: &tracer::Outcome, events: &events::Events) {
    if outcome.lost > 0 {
        warn_user!("hodo: {}", told_lost(outcome.lost, outcome.events));
        match events.stuck() {
            Some(why) => warn_user!("hodo: {why}"),
            None if hodo_ptrace::limits::is_address_space_limited() => warn_user!(
                "hodo: the limit on address space (ulimit -v) leaves little room for the trace: raise it to record everything"
            ),
            None => {}
        }
    }
}

/// The thread that keeps chunks ready. It ends when this is dropped, as it must however the recording ends.
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
        let started = start_scoped(scope, || populate(events, done));
        // If no more threads can be started (ulimit -u), targets get their pages from the kernel one by one.
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

/// Keeps chunks ready ahead of the program; the faster the program uses them, the more.
pub fn populate(events: &events::Events, done: &AtomicBool) {
    let mut ready = 0;
    let mut last = 0;
    let mut ahead = AHEAD.0;
    let mut has_room = true;
    while !done.load(Ordering::Acquire) {
        events.grow();
        events.tell_time();
        let used = events.chunks();
        // No more than were used so far: most programs end soon, and chunks that nobody fills cost just as much.
        let most = used.clamp(AHEAD.0, AHEAD.1);
        ahead = (ahead / 2).max((used - last) * 4).clamp(AHEAD.0, most);
        last = used;
        let want = used + ahead;
        if has_room && want > ready {
            // On a full disk there is nothing to prepare. Other obstacles do not concern the targets.
            has_room = events.populate(ready.max(used)..want);
            ready = want;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_with_larger_pages_are_refused() {
        assert!(fits(4096).is_ok());
        let error = fits(64 << 10).expect_err("they are larger").to_string();
        assert!(error.contains("64 KiB"), "{error}");
    }
}
