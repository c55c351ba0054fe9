//! Recording a process that runs already: what stands in its way is said before anything is done.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};

use crate::Ended;
use crate::options::{Exit, RecordOptions};
use crate::place::Place;
use crate::signals::Interrupts;
use crate::{
    Populating, check, ledger, maps, modules, probes, remote, reserve, select, session, tell_lost,
    tracer,
};

/// Attaches to a process and records it until it ends, a signal comes or time is up; then lets it go on without a trace of the
/// recording. `front` is the process that the user has started, if that is another.
///
/// # Errors
/// Why that cannot be; nothing was done to the process then.
pub fn attach(
    options: &RecordOptions,
    place: Place,
    pid: i32,
    front: Option<i32>,
) -> Result<Ended> {
    let name = named(pid);
    crate::heed_no_limits();
    reserve::hold();
    refuse(pid, front).map_err(
        |error| match failed_by(&error, &[libc::ESRCH, libc::ENOENT]) {
            true => or_ended(pid, &name, error),
            false => error,
        },
    )?;
    // From here on the signals wait; all threads that are started later inherit that.
    let interrupts = Interrupts::new(options.duration);
    let ready = prepare(options, place, pid).map_err(|error| or_ended(pid, &name, error))?;
    let (mut session, modules, selection) = ready;
    let done = Arc::new(AtomicBool::new(false));
    let events = Arc::clone(&session.events);
    let tracer = tracer::Tracer::idle(options, &mut session, modules, selection, pid);
    let outcome = std::thread::scope(|scope| {
        let _end = Populating::start(scope, &events, &done);
        tracer.run_attached(interrupts, &name)
    })?;
    tell_lost(&outcome, &events);
    // How the process ends is not hodo's: it is another's child.
    Ok(Ended {
        exit: Exit::Code(if outcome.broken { 125 } else { 0 }),
        unplaced: outcome.unplaced,
    })
}

/// Takes back what a hodo that was killed has left in a process, and lets the process go on. Returns whether there was something.
///
/// # Errors
/// If it cannot be taken back: the process is as it was, unless something else is said.
pub fn detach(options: &RecordOptions, place: Place, pid: i32, front: Option<i32>) -> Result<bool> {
    crate::heed_no_limits();
    reserve::hold();
    may_stop(pid, front)?;
    // From here on the signals wait.
    let _interrupts = Interrupts::new(None);
    let Some(found) = ledger::find(pid)? else {
        return Ok(false);
    };
    own_memory(pid)?;
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let program = std::fs::read_link(&exe).unwrap_or(exe);
    let mut session = session::Session::create(options, &program, place)?;
    let selection = select::Selection::new(options)?;
    let modules = modules::Modules::new(probes::Probes::new(&[], true)?);
    let mut tracer = tracer::Tracer::idle(options, &mut session, modules, selection, pid);
    tracer.clear(&found)?;
    Ok(true)
}

/// The processes in which a hodo that was killed has left something, as far as this user may look at them: numbers and names.
#[must_use]
pub fn left_behind() -> Vec<String> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<i32> = numbers.filter(|&pid| is_left(pid)).collect();
    pids.sort_unstable();
    pids.into_iter().map(named).collect()
}

fn is_left(pid: i32) -> bool {
    let untraced = remote::status(pid, "TracerPid:").is_some_and(|tracer| tracer == "0");
    untraced && ledger::find(pid).is_ok_and(|found| found.is_some())
}

/// How long a process may take to end that is about to.
const LAST_BREATH: Duration = Duration::from_secs(1);

/// What went wrong with a process before it was attached to: that it has ended, if it has.
pub fn or_ended(pid: i32, name: &str, error: Error) -> Error {
    let begun = Instant::now();
    let is_ending = failed_by(&error, &[libc::ESRCH]);
    while !has_ended(pid) {
        // Its memory goes first.
        if has_memory(pid) && !is_ending || begun.elapsed() > LAST_BREATH {
            return error;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    anyhow!(
        "process {name} ended while hodo attached to it, before anything was recorded: start its program under hodo, which \
         sees it from its first instruction on"
    )
}

/// Whether something went wrong because the kernel said one of these.
fn failed_by(error: &Error, codes: &[i32]) -> bool {
    let mut causes = (error.chain()).filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.any(|error| {
        error
            .raw_os_error()
            .is_some_and(|code| codes.contains(&code))
    })
}

/// Whether no thread of a process is left.
fn has_ended(pid: i32) -> bool {
    let state = remote::status(pid, "State:");
    state.is_none_or(|state| state.starts_with(['Z', 'X'])) && !has_living_threads(pid)
}

/// Whether a process has memory. That of its first thread is not there any more when this has ended.
fn has_memory(pid: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut tasks = tasks.into_iter().flatten().flatten();
    tasks.any(|task| {
        let maps = std::fs::read(task.path().join("maps"));
        maps.is_ok_and(|maps| !maps.is_empty())
    })
}

/// The trace and what is to be recorded.
fn prepare(
    options: &RecordOptions,
    place: Place,
    pid: i32,
) -> Result<(session::Session, modules::Modules, select::Selection)> {
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let program = std::fs::read_link(&exe).with_context(|| no_process(pid))?;
    let selection = select::Selection::new(options)?;
    let mut probes = probes::Probes::new(&options.probes, !options.no_time)?;
    if options.calls {
        probes.beside_calls();
    }
    if let Some(syscalls) = &options.syscalls {
        probes.record_syscalls(syscalls);
    }
    probes.find_events(&options.events)?;
    let mut session = session::Session::create(options, &program, place)?;
    if probes.count() {
        session.make_counters()?;
    }
    if probes.histogram_bytes() > 0 {
        session.make_histograms(probes.histogram_bytes())?;
    }
    let mut modules = modules::Modules::new(probes);
    let module = modules.get(&exe, &program, &selection, true, &mut session)?;
    for pattern in check::useless(&selection, &module, &program) {
        tell!(
            "hodo: {pattern} matches no function of {} or its libraries",
            program.display()
        );
    }
    let mapped = std::iter::once_with(|| mapped_files(pid)).flatten();
    for pattern in check::useless_events(&modules.probes, &module, mapped) {
        tell!(
            "hodo: {pattern} matches no event of {} or its libraries; those that are loaded later are looked at, too",
            program.display()
        );
    }
    for (definition, path) in modules.probes.files(&program) {
        if path != program {
            modules.get(&path, &path, &selection, false, &mut session)?;
        }
        if modules.probes.placed(definition) == 0 {
            bail!("{}: {}", path.display(), modules.probes.why(definition));
        }
    }
    Ok((session, modules, selection))
}

/// Where to read the files whose code is mapped.
fn mapped_files(pid: i32) -> Vec<PathBuf> {
    let maps = maps::read(pid).unwrap_or_default();
    let code = maps.iter().filter(|m| m.executable && m.inode != 0);
    let rooted = |path: &std::path::Path| format!("/proc/{pid}/root{}", path.display());
    code.map(|mapping| rooted(&mapping.path).into()).collect()
}

pub fn no_process(pid: i32) -> String {
    format!("there is no process {pid}")
}

/// A process as messages name it.
pub fn named(pid: i32) -> String {
    match remote::status(pid, "Name:") {
        Some(name) => format!("{pid} ({name})"),
        None => pid.to_string(),
    }
}

pub fn user_name(uid: u32) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| format!("with number {uid}"))
}

/// # Errors
/// Why the threads of a process cannot be stopped, as far as `/proc` tells.
fn may_stop(pid: i32, front: Option<i32>) -> Result<()> {
    let status = |key| remote::status(pid, key);
    let number = |key| status(key).and_then(|text| text.parse::<i32>().ok());
    let begun = Instant::now();
    // All of it may be about to end.
    while status("State:").is_some_and(|state| state.starts_with('Z')) && has_living_threads(pid) {
        if begun.elapsed() > LAST_BREATH {
            bail!(
                "process {} cannot be attached to: its first thread has ended, and the kernel does not tell of its memory \
                 by its number any more",
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
            "process {} has ended: what is left waits for its parent {} to ask for its exit status",
            named(pid),
            named(parent)
        );
    }
    if status("Kthread:").as_deref() == Some("1") || pid == 2 || number("PPid:") == Some(2) {
        bail!(
            "process {} is a thread of the kernel: it has no code of a program",
            named(pid)
        );
    }
    if let Some(tracer) = number("TracerPid:").filter(|&tracer| tracer != 0) {
        let name = remote::status(tracer, "Name:").unwrap_or_default();
        if name == "hodo" {
            bail!(
                "hodo is attached to process {} already, as process {tracer}: Ctrl-C there, or kill {tracer}, ends that",
                named(pid)
            );
        }
        bail!(
            "process {} is under control of another tracer: {}; a process can have only one",
            named(pid),
            named(tracer)
        );
    }
    may_trace(pid)?;
    if remote::is_confined(pid) {
        bail!(
            "process {} is under a seccomp filter, which may forbid the system calls that attaching takes",
            named(pid)
        );
    }
    Ok(())
}

/// # Errors
/// If another process has the memory of this one, and goes on having it.
fn own_memory(pid: i32) -> Result<()> {
    let begun = Instant::now();
    while let Some(other) = shares_memory(pid) {
        if begun.elapsed() > SPAWNING {
            bail!(
                "process {} cannot be attached to: its memory is that of process {}, too (vfork, or clone with CLONE_VM), which \
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
/// Why a process cannot be attached to, as far as `/proc` tells.
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

/// How long a child of vfork may take to execute a program.
const SPAWNING: Duration = Duration::from_secs(2);

/// Another process that has the same memory.
fn shares_memory(pid: i32) -> Option<i32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut others = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    others.find(|&other| other != pid && have_one_memory(pid, other))
}

/// Whether two processes have the same memory. Where that cannot be known, they have not.
pub fn have_one_memory(pid: i32, other: i32) -> bool {
    /// Of `kcmp`.
    const KCMP_VM: i32 = 1;
    // SAFETY: kcmp compares, and changes nothing.
    unsafe { libc::syscall(libc::SYS_kcmp, pid, other, KCMP_VM, 0, 0) == 0 }
}

/// # Errors
/// If there is no such process, or this user may not look at its memory.
pub fn readable(pid: i32) -> Result<()> {
    if pid <= 0 || remote::status(pid, "State:").is_none() {
        bail!("{}", no_process(pid));
    }
    may_trace(pid)
}

/// Has a process whose first thread has ended others?
fn has_living_threads(pid: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    tasks.is_ok_and(|tasks| tasks.count() > 1)
}

/// # Errors
/// If this user may not trace a process.
fn may_trace(pid: i32) -> Result<()> {
    let ids = remote::status(pid, "Uid:").unwrap_or_default();
    let owner: Option<u32> = ids.split_whitespace().next().and_then(|id| id.parse().ok());
    // SAFETY: geteuid only returns a number.
    let me = unsafe { libc::geteuid() };
    // Reading the memory takes the same right as attaching.
    let error = match std::fs::File::open(format!("/proc/{pid}/mem")) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if let Some(owner) = owner.filter(|&owner| me != 0 && owner != me) {
        bail!(
            "process {} belongs to user {}: only that user and root may attach to it",
            named(pid),
            user_name(owner)
        );
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !matches!(scope.trim(), "" | "0") {
        bail!(
            "process {} may not be attached to: kernel.yama.ptrace_scope is {}; as root, or after `sysctl \
             kernel.yama.ptrace_scope=0`, it may",
            named(pid),
            scope.trim()
        );
    }
    Err(error).with_context(|| {
        format!(
            "process {} may not be attached to: it has rights that this user does not, or has forbidden it",
            named(pid)
        )
    })
}
