//! Launches programs, maps the agent into them, follows their threads and children. The only crate that knows ptrace.
//!
//! [`record`] does all of it, and writes a trace directory.

/// Says something on standard error. Where nobody can read that (a full disk, a reader that has gone away), what is being traced must not
/// suffer, as it would from the panic of `eprintln`.
#[macro_export]
macro_rules! tell {
    ($($piece:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($piece)*);
    }};
}

mod adopt;
mod aside;
mod attach;
pub mod cache;
mod check;
mod context;
mod control;
mod costs;
mod events;
mod frames;
mod front;
mod give;
mod hooks;
mod inherited;
mod instrument;
mod keys;
mod launch;
mod ledger;
mod limits;
mod machine;
mod maps;
mod modules;
mod options;
mod owner;
mod place;
mod probes;
mod reach;
mod remote;
mod reserve;
mod select;
mod session;
mod signals;
mod spots;
mod stops;
mod stubs;
mod tasks;
mod tracer;
mod waits;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hodo_trace::told_lost;

pub use probes::{
    Changed, Examined, ExaminedPlace, Listed, ListedEvent, dry_run, list, list_events,
    list_events_of, list_usdt,
};

pub use attach::{attach, detach, left_behind};
pub use control::{Changes, change};
pub use front::{Front, front};
pub use inherited::messages_to;
pub use keys::{KeyState, ListedKey, list_keys, list_keys_of, switch_keys};
pub use launch::execute;
pub use limits::has_small_stack;
pub use options::{Clock, Exit, Match, RecordOptions, SyscallOptions};
pub use place::Place;
pub use reserve::WithReserve;
pub use session::moment;

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
/// If the program or the trace directory is not to be had; nothing has run then.
pub fn record(options: &RecordOptions, place: Place) -> Result<Ended> {
    let name = options
        .command
        .first()
        .context("there is no program to run")?;
    let program = launch::find_program(name)?;
    heed_no_limits();
    reserve::hold();
    let selection = select::Selection::new(options)?;
    let mut session = session::Session::create(options, &program, place)?;
    // Signals from the terminal are for the program; hodo ends when it does, and stops when it does: if it stopped first,
    // the program could not tidy up the terminal before.
    // SAFETY: ignoring a signal runs no code.
    unsafe {
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGQUIT, libc::SIG_IGN);
        libc::signal(libc::SIGTSTP, libc::SIG_IGN);
    }
    let mut probes = probes::Probes::new(&options.probes, !options.no_time)?;
    probes.follow_names();
    if options.calls {
        probes.beside_calls();
    }
    if let Some(syscalls) = &options.syscalls {
        probes.record_syscalls(syscalls);
    }
    if probes.count() {
        session.make_counters()?;
    }
    if probes.histogram_bytes() > 0 {
        session.make_histograms(probes.histogram_bytes())?;
    }
    probes.find_events(&options.events)?;
    let mut modules = modules::Modules::new(probes);
    // A script has no functions of its own, and what cannot be read is told when it is executed.
    if let Ok(module) = modules.get(
        &program,
        &canonical(&program),
        &selection,
        true,
        &mut session,
    ) {
        for pattern in check::useless(&selection, &module, &program) {
            tell!(
                "hodo: {pattern} matches no function of {} or its libraries",
                program.display()
            );
        }
        let libraries = std::iter::once_with(|| check::libraries(&module.image.bytes, &program));
        for pattern in check::useless_events(&modules.probes, &module, libraries.flatten()) {
            tell!(
                "hodo: {pattern} matches no event of {} or its libraries; those that are loaded later are looked at, too",
                program.display()
            );
        }
    }
    // What can be known of probes is told before anything runs.
    for (definition, path) in modules.probes.files(&canonical(&program)) {
        modules.get(&path, &path, &selection, false, &mut session)?;
        if modules.probes.placed(definition) > 0 {
            continue;
        }
        let several = options.probes.len() > 1;
        if several && modules.probes.is_pattern(definition) {
            // A library of data only, say. The others may find their places.
            tell!(
                "hodo: {}: {}",
                path.display(),
                modules.probes.why(definition)
            );
        } else {
            bail!("{}: {}", path.display(), modules.probes.why(definition));
        }
    }
    let child = launch::fork(&program, &options.command, options.keep_pid)?;
    let done = Arc::new(AtomicBool::new(false));
    // A program that has hodo's own process id gets what is sent to that.
    let forward = signals::Forward::start((!options.keep_pid).then_some(child.pid));
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

/// Limits on hodo's own resources are raised as far as that is allowed, and what they forbid then is an error of a system call, not
/// hodo's end.
fn heed_no_limits() {
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    limits::raise_own();
}

/// Says how many records were lost, and why, as far as that is known.
fn tell_lost(outcome: &tracer::Outcome, events: &events::Events) {
    if outcome.lost > 0 {
        tell!("hodo: {}", told_lost(outcome.lost, outcome.events));
        match events.stuck() {
            Some(why) => tell!("hodo: {why}"),
            None if limits::is_address_space_limited() => tell!(
                "hodo: the limit on address space (ulimit -v) leaves little of it for the trace: raise it for the whole of it"
            ),
            None => {}
        }
    }
}

/// A file's path as the kernel tells it.
fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The thread that keeps chunks ready. It ends when this is dropped: whatever happens to a recording, it must.
struct Populating<'a> {
    thread: Option<std::thread::Thread>,
    done: &'a AtomicBool,
}

impl<'a> Populating<'a> {
    fn start<'scope>(
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
fn populate(events: &events::Events, done: &AtomicBool) {
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
