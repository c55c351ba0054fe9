//! Threads of this crate, of which the program should notice as little as possible.

use std::string::ToString;

use hodo_sys::sys;

/// Starts a thread that signals from outside never interrupt. False if there can be none.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    // The thread begins with the blocked signals of this one, so not even its first instructions are interrupted.
    let Ok(before) = sys::block_signals() else {
        return false;
    };
    let started = std::thread::Builder::new()
        .name(name.to_string())
        .stack_size(256 << 10)
        .spawn(work);
    let _ = sys::set_blocked_signals(before);
    started.is_ok()
}
