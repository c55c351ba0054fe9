//! The status of a process and its threads, from `/proc`.

use anyhow::{Context, Result};

/// The name of a thread, with a byte 0 at its end; nothing, if it is gone.
pub fn comm(tid: i32) -> [u8; 16] {
    let mut name = [0; 16];
    let text = std::fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let length = text.len().min(name.len() - 1);
    name[..length].copy_from_slice(&text[..length]);
    name
}

/// The value of a line of `/proc/TID/status`; `key` ends in a colon.
pub fn status(tid: i32, key: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{tid}/status"))
        .ok()?
        .lines()
        .find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()))
}

/// Where the heap that `brk` moves begins, also if there is none yet: `start_brk` of `/proc/PID/stat` (proc(5)).
pub fn start_of_heap(pid: i32) -> Option<u64> {
    /// Its number among the fields after the program's name, which may contain anything.
    const FIELD: usize = 47 - 3;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = stat.get(stat.rfind(')')? + 1..)?;
    let start = fields.split_whitespace().nth(FIELD)?.parse().ok()?;
    (start != 0).then_some(start)
}

/// Returns whether the thread is under a seccomp filter.
pub fn is_confined(tid: i32) -> bool {
    status(tid, "Seccomp:").is_some_and(|mode| mode != "0")
}

/// The threads of a process.
pub(crate) fn tasks(pid: i32) -> Result<Vec<i32>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))
        .with_context(|| format!("process {pid} no longer exists"))?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect())
}

/// The process that a thread belongs to.
pub fn process_of(tid: i32) -> Option<i32> {
    status(tid, "Tgid:")?.parse().ok()
}

/// The numbers of the process that a thread belongs to, in its PID namespace and those around it.
pub fn numbers_of(tid: i32) -> Vec<i32> {
    let numbers = status(tid, "NStgid:").unwrap_or_default();
    let words = numbers.split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

pub(crate) fn is_ending(tid: i32) -> bool {
    status(tid, "State:").is_none_or(|state| state.starts_with(['Z', 'X']))
}

/// The system call that a thread waits in, and its arguments.
pub fn call_of(tid: i32) -> Option<(i64, Vec<u64>)> {
    let text = std::fs::read_to_string(format!("/proc/{tid}/syscall")).ok()?;
    let mut words = text.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let arguments = words
        .map_while(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .collect();
    Some((number, arguments))
}

/// Whether a process has a handler for a signal.
pub fn is_caught(tid: i32, signal: i32) -> bool {
    1 << (signal - 1) & mask(tid, "SigCgt:") != 0
}

/// Whether a process ignores a signal that it could have a handler for.
pub fn is_ignored(tid: i32, signal: i32) -> bool {
    1 << (signal - 1) & mask(tid, "SigIgn:") != 0
}

/// Whether a process is the first of its PID namespace, to which signals do nothing that it has no handler for.
pub fn is_first(tid: i32) -> bool {
    let process = process_of(tid).unwrap_or(tid);
    let numbers = status(process, "NSpid:");
    numbers.is_some_and(|numbers| numbers.split_whitespace().next_back() == Some("1"))
}

/// The signals that are nothing to a process.
pub(crate) fn ignored(tid: i32) -> u64 {
    let by_default = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH];
    let by_default = match is_first(tid) {
        true => u64::MAX,
        false => (by_default.iter()).fold(0, |set, signal| set | 1 << (signal - 1)),
    };
    mask(tid, "SigIgn:") | by_default & !mask(tid, "SigCgt:")
}

fn mask(tid: i32, key: &str) -> u64 {
    status(tid, key)
        .and_then(|text| u64::from_str_radix(&text, 16).ok())
        .unwrap_or(0)
}

/// The signals that wait for a thread itself.
pub fn pending(tid: i32) -> u64 {
    mask(tid, "SigPnd:")
}

/// The signals that a thread blocks, as a set.
pub fn blocked(tid: i32) -> u64 {
    mask(tid, "SigBlk:")
}

/// Returns whether a signal is pending for the thread that it does not ignore.
pub fn has_signal(tid: i32) -> bool {
    (mask(tid, "SigPnd:") | mask(tid, "ShdPnd:")) & !(mask(tid, "SigBlk:") | ignored(tid)) != 0
}
