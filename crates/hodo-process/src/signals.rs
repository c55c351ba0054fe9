//! Signals that are sent to the recorder but meant for the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Signals that are handed on to the program, which then ends or not as it would have.
const FORWARDED: [i32; 4] = [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// The set of forwarded signals.
fn set() -> libc::sigset_t {
    // SAFETY: all-zero is a valid sigset_t for sigemptyset to fill, and the others add to it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in FORWARDED {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Hands signals on while it lives.
#[derive(Debug)]
pub struct Forward {
    done: Arc<AtomicBool>,
}

impl Forward {
    /// To be called in the thread that starts all others, after the program was forked: the signals are blocked here
    /// and waited for in a thread of their own.
    pub fn start(pid: i32) -> Self {
        let set = set();
        // SAFETY: the set is initialized; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        let done = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&done);
        std::thread::spawn(move || {
            let pause = libc::timespec {
                tv_sec: 0,
                tv_nsec: 300_000_000,
            };
            while !flag.load(Ordering::Acquire) {
                // SAFETY: the set and the time are initialized; the signal's information is not asked for.
                let signal = unsafe {
                    libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const pause)
                };
                if signal > 0 && !flag.load(Ordering::Acquire) {
                    // SAFETY: kill touches no memory. The program is our child and is not reaped before `flag` is set.
                    unsafe { libc::kill(pid, signal) };
                }
            }
        });
        Self { done }
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Release);
        let set = set();
        // SAFETY: as in `start`.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
    }
}
