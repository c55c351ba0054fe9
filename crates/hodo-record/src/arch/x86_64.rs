//! x86-64.

mod costs;

pub use super::unchecked::{guards_returns, will_guard_returns};
pub use costs::measure;

/// The value of `tcb::FLAGS` for a thread that is not under a seccomp filter. System calls destroy nothing that the
/// agent would have to save.
pub fn calls(_tid: i32) -> u64 {
    0
}
