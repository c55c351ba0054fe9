//! Signals that end the viewing part of `live`, which has a directory to remove first.

use std::sync::atomic::{AtomicI32, Ordering};

static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn remember(signal: i32) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

/// Remembers signals that ask this process to end, instead of ending at once.
pub fn watch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: an all-zero sigaction is valid: no flags (so that system calls are interrupted) and an empty mask. The
        // handler is async-signal-safe: it stores to an atomic.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = remember as extern "C" fn(i32) as libc::sighandler_t;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// The signal that asked this process to end, if one did.
pub fn signal() -> Option<i32> {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(signal),
    }
}
