//! x86-64.

mod costs;

pub use costs::measure;

/// What the control block of a thread has in `tcb::FLAGS`, if it is not under a filter of system calls: these lose
/// nothing.
pub fn calls(_tid: i32) -> u64 {
    0
}
