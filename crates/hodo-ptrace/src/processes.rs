//! Processes of this machine: their names, whether they live, and whether this user may look at them.

use anyhow::Context;
use std::time::{Duration, Instant};

use crate as ptrace;
use crate::status::tasks;
use anyhow::{Error, Result, anyhow, bail};

/// How long a process may take to end that is about to.
pub const LAST_BREATH: Duration = Duration::from_secs(1);

/// What went wrong with a process before it was attached to: that it has ended, if it has.
pub fn or_ended(pid: i32, name: &str, error: Error) -> Error {
    let begun = Instant::now();
    let is_ending = failed_by(&error, &[libc::ESRCH]);
    while !has_ended(pid) {
        // Its memory goes first.
        if has_memory(pid) && !is_ending || begun.elapsed() > LAST_BREATH {
            return error;
        }
        if is_ending {
            let_end(pid);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    anyhow!(
        "process {name} ended while hodo attached to it, before anything was recorded: start its program under hodo, which \
         sees it from its first instruction on"
    )
}

/// Threads that are traced may stop once more before they end: lets them.
fn let_end(pid: i32) {
    for tid in tasks(pid).unwrap_or_default() {
        let report = ptrace::Report::of(tid, false).ok().flatten();
        let report = report.filter(|report| report.event() == libc::PTRACE_EVENT_EXIT);
        if let Some(thread) = report.and_then(ptrace::Report::stopped) {
            let _ = thread.detach();
        }
    }
}

/// Whether something went wrong because the kernel said one of these.
pub fn failed_by(error: &Error, codes: &[i32]) -> bool {
    let mut causes = (error.chain()).filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.any(|error| {
        error
            .raw_os_error()
            .is_some_and(|code| codes.contains(&code))
    })
}

/// Whether no thread of a process is left.
pub fn has_ended(pid: i32) -> bool {
    let state = ptrace::status(pid, "State:");
    state.is_none_or(|state| state.starts_with(['Z', 'X'])) && !has_living_threads(pid)
}

/// Returns whether a process whose first thread has ended has others.
pub fn has_living_threads(pid: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    tasks.is_ok_and(|tasks| tasks.count() > 1)
}

/// Whether a process has memory. That of its first thread is not there any more when this has ended.
pub fn has_memory(pid: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut tasks = tasks.into_iter().flatten().flatten();
    tasks.any(|task| {
        let maps = std::fs::read(task.path().join("maps"));
        maps.is_ok_and(|maps| !maps.is_empty())
    })
}

/// What to say of a process that is not there.
pub fn no_process(pid: i32) -> String {
    format!("there is no process {pid}")
}

/// A process as messages name it.
pub fn named(pid: i32) -> String {
    match ptrace::status(pid, "Name:") {
        Some(name) => format!("{pid} ({name})"),
        None => pid.to_string(),
    }
}

/// The name of a user, or the number.
pub fn user_name(uid: u32) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| format!("with number {uid}"))
}

/// The children of a process, and theirs.
pub fn descendants(pid: i32) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: Vec<(i32, i32)> = numbers
        .filter_map(|child| Some((child, ptrace::status(child, "PPid:")?.parse().ok()?)))
        .collect();
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        let children = parents.iter().filter(|&&(_, of)| of == parent);
        found.extend(children.map(|&(child, _)| child));
        at += 1;
    }
    found.remove(0);
    found
}

/// How long a child of vfork may take to execute a program.
pub const SPAWNING: Duration = Duration::from_secs(2);

/// Another process that has the same memory.
pub fn shares_memory(pid: i32) -> Option<i32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut others = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    others.find(|&other| other != pid && have_one_memory(pid, other))
}

/// Whether two processes have the same memory. Where that cannot be known, they have not.
pub fn have_one_memory(pid: i32, other: i32) -> bool {
    /// Of `kcmp`.
    const KCMP_VM: i32 = 1;
    // SAFETY: kcmp compares, and changes nothing.
    let is_same = unsafe { libc::syscall(libc::SYS_kcmp, pid, other, KCMP_VM, 0, 0) == 0 };
    // A process that has ended has no memory, as threads of the kernel have none.
    is_same && ptrace::status(pid, "VmSize:").is_some()
}

/// # Errors
/// If there is no such process, or this user may not look at its memory.
pub fn readable(pid: i32) -> Result<()> {
    if pid <= 0 || ptrace::status(pid, "State:").is_none() {
        bail!("{}", no_process(pid));
    }
    may_trace(pid)
}

/// # Errors
/// If this user may not trace a process.
pub fn may_trace(pid: i32) -> Result<()> {
    let ids = ptrace::status(pid, "Uid:").unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn processes_that_have_ended_share_nothing() {
        let mut ended = [(); 2].map(|()| Command::new("true").spawn().expect("it is there"));
        let pids = [0, 1].map(|which: usize| ended[which].id().cast_signed());
        // They are not waited for, so they are still listed.
        for pid in pids {
            while ptrace::status(pid, "VmSize:").is_some() {
                std::thread::yield_now();
            }
        }
        assert!(!have_one_memory(pids[0], pids[1]));
        let own = std::process::id().cast_signed();
        assert!(have_one_memory(own, own));
        for child in &mut ended {
            assert!(child.wait().expect("its end").success());
        }
    }
}
