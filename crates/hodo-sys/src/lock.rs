//! The lock for changing code: one thread at a time may read, change and write it.

use core::sync::atomic::{AtomicU64, Ordering};

#[cfg(target_os = "linux")]
use crate::sys;

/// Process (upper half) and thread that are changing code; 0 if nobody is.
pub static OWNER: AtomicU64 = AtomicU64::new(0);

/// The lock is held as long as this lives.
#[derive(Debug)]
pub struct Guard {
    process: u32,
}

/// A signal handler interrupted this thread while it held the lock, and cannot wait for its release.
#[derive(Debug, Clone, Copy)]
pub struct Busy;

impl Guard {
    /// The process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        OWNER.store(0, Ordering::Release);
    }
}

/// Takes the lock. A child of fork takes it over from a thread that does not exist there.
///
/// # Errors
/// [`Busy`] if this thread holds it.
pub fn take() -> Result<Guard, Busy> {
    let me = me();
    let process = (me >> 32) as u32;
    loop {
        match OWNER.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Ok(Guard { process }),
            Err(owner) if owner == me && cfg!(target_os = "linux") => return Err(Busy),
            Err(owner) if owner >> 32 != me >> 32 => {
                // Only one thread of the child takes it over.
                let taken = OWNER.compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_ok() {
                    return Ok(Guard { process });
                }
            }
            Err(_) => pause(),
        }
    }
}

#[cfg(target_os = "linux")]
fn me() -> u64 {
    (sys::process() as u64) << 32 | u64::from(sys::thread())
}

/// Lets other threads run.
#[cfg(target_os = "linux")]
pub fn pause() {
    sys::yield_now();
}

/// Without an operating system there is one process, and threads cannot be told apart.
#[cfg(not(target_os = "linux"))]
fn me() -> u64 {
    1 << 32 | 1
}

/// Lets other threads run.
#[cfg(not(target_os = "linux"))]
pub fn pause() {
    core::hint::spin_loop();
}
