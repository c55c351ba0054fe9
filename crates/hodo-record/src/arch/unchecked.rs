//! Processors on which functions may return anywhere, as far as hodo knows.

/// Returns what to say if the processor checks where functions of a process return to: here, this is not asked.
pub fn guards_returns(_pid: i32) -> Option<&'static str> {
    None
}

/// The same of a program that hodo starts.
pub fn will_guard_returns() -> Option<&'static str> {
    None
}
