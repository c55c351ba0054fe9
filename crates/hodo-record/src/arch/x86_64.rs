//! x86-64.

mod costs;

pub use costs::measure;

/// The value of `tcb::FLAGS` for a thread that is not under a seccomp filter. System calls destroy nothing that the
/// agent would have to save.
pub fn calls(_tid: i32) -> u64 {
    0
}

/// Returns what to say if the processor checks where functions of a process return to. Programs on this one are not
/// asked.
pub fn guards_returns(_pid: i32) -> Option<&'static str> {
    None
}

/// The same of a program that hodo starts.
pub fn will_guard_returns() -> Option<&'static str> {
    None
}
