//! 64-bit RISC-V.

mod vectors;

pub use super::linked::measure;
pub use vectors::calls;

/// Returns what to say if the processor checks where functions of a process return to. Programs on this one are not
/// asked.
pub fn guards_returns(_pid: i32) -> Option<&'static str> {
    None
}

/// The same of a program that hodo starts.
pub fn will_guard_returns() -> Option<&'static str> {
    None
}
