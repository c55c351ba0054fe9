//! The first process of a PID namespace, which the kernel protects from signals.

use hodo_ptrace::{is_caught, is_first};

/// Signals that instructions cause.
pub const CAUSED: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// A signal that an instruction has caused ends the first process of a PID namespace, unless it has a handler. But the
/// kernel does not end it while it is traced: the instruction would be executed again and again. So whoever traces it
/// has to release it, to execute it untraced. Returns whether that is so with a thread that gets this signal.
#[must_use]
pub fn ends_untraced(tid: i32, signal: i32) -> bool {
    CAUSED.contains(&signal) && !is_caught(tid, signal) && is_first(tid)
}
