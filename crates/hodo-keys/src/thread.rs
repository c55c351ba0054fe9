//! Starts this crate's threads, which the program should notice as little as possible.

use std::string::ToString;

use hodo_sys::sys;

/// Starts a thread that signals from outside never interrupt. Returns false if none can be started.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> bool {
    // A new thread inherits the signals that this one blocks, so not even its first instructions are interrupted.
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
