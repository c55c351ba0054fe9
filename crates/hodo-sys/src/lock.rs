//! The lock for changing code: one thread at a time may read, change and write it.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

#[cfg(target_os = "linux")]
use crate::sys;

/// Process (upper half) and thread that are changing code; 0 if nobody is.
pub static OWNER: AtomicU64 = AtomicU64::new(0);

/// The word that takes the place of [`OWNER`]; null if none does.
static SHARED: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

fn word() -> &'static AtomicU64 {
    // SAFETY: `share` has it from such a reference.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }.unwrap_or(&OWNER)
}

/// Makes this lock the same as that of another library of the process, whose word is given: it is used in the same way.
/// From then on, neither of them changes code while the other one does.
///
/// # Errors
/// [`Busy`] if this thread holds the lock.
pub fn share(other: &'static AtomicU64) -> Result<(), Busy> {
    if core::ptr::eq(word(), other) {
        return Ok(());
    }
    let _guard = take()?;
    SHARED.store(core::ptr::from_ref(other).cast_mut(), Ordering::Release);
    Ok(())
}

/// The lock is held as long as this lives.
#[derive(Debug)]
pub struct Guard {
    process: u32,
    word: &'static AtomicU64,
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
        self.word.store(0, Ordering::Release);
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
        let word = word();
        let owner = word.load(Ordering::Relaxed);
        if owner == me && cfg!(target_os = "linux") {
            return Err(Busy);
        }
        // Only one thread of a child takes it over.
        let is_free = owner == 0 || owner >> 32 != me >> 32;
        let order = (Ordering::Acquire, Ordering::Relaxed);
        if !is_free || word.compare_exchange(owner, me, order.0, order.1).is_err() {
            pause();
            continue;
        }
        let guard = Guard { process, word };
        // Another word may have taken its place in the meantime.
        if core::ptr::eq(self::word(), word) {
            return Ok(guard);
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_shared_word_takes_the_place_of_the_own_one() {
        static OTHER: AtomicU64 = AtomicU64::new(0);
        let guard = take().expect("nobody holds it");
        assert!(share(&OTHER).is_err() && take().is_err());
        thread::scope(|scope| {
            let waits = scope.spawn(|| share(&OTHER).is_ok());
            drop(guard);
            assert!(waits.join().expect("it ends"));
        });
        let guard = take().expect("nobody holds it");
        assert_eq!(
            (OWNER.load(Ordering::Relaxed), OTHER.load(Ordering::Relaxed)),
            (0, me())
        );
        drop(guard);
        assert_eq!(OTHER.load(Ordering::Relaxed), 0);
    }
}
