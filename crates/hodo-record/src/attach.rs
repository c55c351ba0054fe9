//! Records a running process. Obstacles are reported before anything is done.

use hodo_ptrace::processes::{
    LAST_BREATH, SPAWNING, failed_by, has_ended, has_living_threads, may_trace, named, no_process,
    or_ended, shares_memory,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::abandon::before_attaching;
use crate::options::RecordOptions;
use crate::recording::Ended;
use crate::recording::{Populating, tell_lost};
use crate::setup::{Program, Setup};
use crate::trace_dir::TraceDir;
use crate::{modules, reserve, select, session, tracer};
use hodo_follow::Exit;
use hodo_module::mapped::program_path;
use hodo_ptrace as ptrace;
use hodo_ptrace::signals::Interrupts;

/// Attaches to processes and records them until they end, a signal comes or time is up; then detaches, so that they run
/// on without a trace of the recording. `front` is the process that the user started, if that is a different one.
///
/// # Errors
/// Why one of the processes cannot be attached to; they all run on as if nothing had happened.
pub fn attach(
    options: &RecordOptions,
    place: TraceDir,
    pids: &[i32],
    front: Option<i32>,
) -> Result<Ended> {
    crate::recording::check_pages()?;
    let processes: Vec<(i32, String)> = pids.iter().map(|&pid| (pid, named(pid))).collect();
    crate::recording::heed_no_limits();
    reserve::hold();
    for (pid, name) in &processes {
        refuse(*pid, front).map_err(|error| {
            match failed_by(&error, &[libc::ESRCH, libc::ENOENT]) {
                true => or_ended(*pid, name, error),
                false => error,
            }
        })?;
    }
    // From here on, signals wait; threads that are started later inherit that.
    let interrupts = Interrupts::new(options.duration);
    let mut programs = Vec::new();
    for (pid, name) in &processes {
        programs.push(Program::of_process(*pid).map_err(|error| or_ended(*pid, name, error))?);
    }
    let (first, name) = processes.first().context("no process is named")?;
    let planning = before_attaching(place.removal());
    let setup =
        Setup::new(options, place, &programs).map_err(|error| or_ended(*first, name, error));
    drop(planning);
    let Setup {
        mut session,
        modules,
        selection,
    } = setup?;
    let done = Arc::new(AtomicBool::new(false));
    let events = Arc::clone(&session.events);
    let tracer = tracer::Tracer::idle(options, &mut session, modules, selection, *first);
    let outcome = std::thread::scope(|scope| {
        let _end = Populating::start(scope, &events, &done);
        tracer.run_attached(interrupts, &processes)
    })?;
    tell_lost(&outcome, &events);
    // hodo does not know how the process ends: it is the child of another.
    Ok(Ended {
        exit: Exit::Code(if outcome.broken { 125 } else { 0 }),
        unplaced: outcome.unplaced,
    })
}

/// Undoes the changes that a killed hodo has left in a process, and lets the process run on. Returns whether there were
/// any.
///
/// # Errors
/// If they cannot be undone: the process stays as it is, unless the message says otherwise.
pub fn detach(
    options: &RecordOptions,
    place: TraceDir,
    pid: i32,
    front: Option<i32>,
) -> Result<bool> {
    crate::recording::heed_no_limits();
    reserve::hold();
    may_stop(pid, front)?;
    // From here on, signals wait.
    let _interrupts = Interrupts::new(None);
    let Some(found) = hodo_inject::ledger::find(pid)? else {
        return Ok(false);
    };
    own_memory(pid)?;
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let program = program_path(pid).unwrap_or(exe);
    let mut session = session::Session::create(options, &program, place)?;
    let selection = select::Selection::new(options)?;
    let modules = modules::Modules::new(hodo_probe_compile::Probes::new(&[], true)?);
    let mut tracer = tracer::Tracer::idle(options, &mut session, modules, selection, pid);
    tracer.clear(&found)?;
    Ok(true)
}

/// The processes in which a killed hodo has left changes, as far as this user may inspect them: numbers and names.
#[must_use]
pub fn left_behind() -> Vec<String> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<i32> = numbers.filter(|&pid| is_left(pid)).collect();
    pids.sort_unstable();
    pids.into_iter().map(named).collect()
}

fn is_left(pid: i32) -> bool {
    let untraced = ptrace::status(pid, "TracerPid:").is_some_and(|tracer| tracer == "0");
    untraced && hodo_inject::ledger::find(pid).is_ok_and(|found| found.is_some())
}

/// Checks that a process can be attached to. `front`: the process that waits for this one, if there is one.
///
/// # Errors
/// Why its threads cannot be stopped, as far as `/proc` shows.
pub fn may_stop(pid: i32, front: Option<i32>) -> Result<()> {
    let status = |key| ptrace::status(pid, key);
    let number = |key| status(key).and_then(|text| text.parse::<i32>().ok());
    let begun = Instant::now();
    // The whole process may be about to end.
    while status("State:").is_some_and(|state| state.starts_with('Z')) && has_living_threads(pid) {
        if begun.elapsed() > LAST_BREATH {
            bail!(
                "process {} cannot be attached to: its first thread has ended, so its memory can no longer be \
                 reached by its process ID",
                named(pid)
            );
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if pid <= 0 || status("State:").is_none() {
        bail!("{}", no_process(pid));
    }
    if let Some(process) = number("Tgid:").filter(|&process| process != pid) {
        bail!(
            "{pid} is a thread of process {}: attach to that",
            named(process)
        );
    }
    let own = std::process::id().cast_signed();
    if pid == own || Some(pid) == front {
        bail!("process {pid} is hodo itself");
    }
    if has_ended(pid) {
        let parent = number("PPid:").unwrap_or(0);
        bail!(
            "process {} has ended: its parent {} has not yet collected its exit status",
            named(pid),
            named(parent)
        );
    }
    if status("Kthread:").as_deref() == Some("1") || pid == 2 || number("PPid:") == Some(2) {
        bail!(
            "process {} is a thread of the kernel: it has no program code",
            named(pid)
        );
    }
    if let Some(tracer) = number("TracerPid:").filter(|&tracer| tracer != 0) {
        let name = ptrace::status(tracer, "Name:").unwrap_or_default();
        if name == "hodo" {
            bail!(
                "hodo is attached to process {} already, as process {tracer}: Ctrl-C there, or kill {tracer}, ends that",
                named(pid)
            );
        }
        bail!(
            "process {} is controlled by another tracer: {}; a process can have only one",
            named(pid),
            named(tracer)
        );
    }
    may_trace(pid)?;
    if ptrace::is_confined(pid) {
        bail!(
            "process {} is under a seccomp filter, which may forbid the system calls that attaching needs",
            named(pid)
        );
    }
    Ok(())
}

/// Waits until no other process shares the memory of this one.
///
/// # Errors
/// If that takes too long.
pub fn own_memory(pid: i32) -> Result<()> {
    let begun = Instant::now();
    while let Some(other) = shares_memory(pid) {
        if begun.elapsed() > SPAWNING {
            bail!(
                "process {} cannot be attached to: it shares its memory with process {} (vfork, or clone with CLONE_VM), which \
                 would execute what hodo changes there",
                named(pid),
                named(other)
            );
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// # Errors
/// Why a process cannot be attached to, as far as `/proc` shows.
fn refuse(pid: i32, front: Option<i32>) -> Result<()> {
    may_stop(pid, front)?;
    own_memory(pid)?;
    for (line, what) in [
        ("Max address space", "address space (ulimit -v)"),
        ("Max data size", "data (ulimit -d)"),
    ] {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        let limit = limits.lines().find_map(|text| text.strip_prefix(line));
        if limit.is_some_and(|limit| limit.split_whitespace().next() != Some("unlimited")) {
            bail!(
                "process {} has a limit on its {what}, and the trace needs much of it: raise it with prlimit, or start the \
                 program under hodo",
                named(pid)
            );
        }
    }
    Ok(())
}
