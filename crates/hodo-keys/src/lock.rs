//! One thread changes branches at a time.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::registry::Error;

/// Process and thread that have it; 0 if nobody.
static OWNER: AtomicU64 = AtomicU64::new(0);

// A note tells tools which change keys from outside where that word is, also in files without symbols (owner `hodo`, type 2): they
// stop all threads, and wait until it is 0.
#[cfg(target_os = "linux")]
core::arch::global_asm!(
    ".pushsection .note.hodo.keys,\"\",@note",
    ".balign 4",
    ".4byte 5, 8, 2",
    ".asciz \"hodo\"",
    ".balign 4",
    ".8byte {owner}",
    ".popsection",
    owner = sym OWNER,
);

/// The process in which all branches were what their keys' states say when the lock was given back; 0 if there is none.
static SETTLED: AtomicU32 = AtomicU32::new(0);

/// The lock is held as long as this lives.
pub struct Guard {
    process: u32,
}

impl Guard {
    /// The process.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Whether work may have been left undone by another thread of the process that this one was forked from. The lock itself does
    /// not tell: the kernel copies pages one after the other while other threads go on, so the child may have it as it
    /// was before a change, and the key as it was after.
    pub fn unsettled(&self) -> bool {
        SETTLED.load(Ordering::Relaxed) != self.process
    }

    /// Nothing is left undone.
    pub fn settled(&self) {
        SETTLED.store(self.process, Ordering::Relaxed);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        OWNER.store(0, Ordering::Release);
    }
}

/// Takes it. Fails where this thread has it: a signal handler that has interrupted a change cannot wait for its end.
pub fn take() -> Result<Guard, Error> {
    let me = me();
    let process = (me >> 32) as u32;
    loop {
        match OWNER.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Ok(Guard { process }),
            Err(owner) if owner == me && cfg!(target_os = "linux") => return Err(Error::Busy),
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

/// Takes it, in places where no signal handler can be.
pub fn wait() -> Guard {
    loop {
        match take() {
            Ok(guard) => return guard,
            Err(_) => pause(),
        }
    }
}

#[cfg(target_os = "linux")]
fn me() -> u64 {
    (hodo_text::sys::process() as u64) << 32 | u64::from(hodo_text::sys::thread())
}

#[cfg(target_os = "linux")]
fn pause() {
    hodo_text::sys::yield_now();
}

/// For those who may have to wait long. `rounds`: how often they have waited.
#[cfg(target_os = "linux")]
pub fn pause_longer(rounds: u32) {
    if rounds < 100 {
        pause();
    } else {
        hodo_text::sys::sleep(100_000);
    }
}

/// Without an operating system there is one process, and nothing tells threads apart.
#[cfg(not(target_os = "linux"))]
fn me() -> u64 {
    1 << 32 | 1
}

#[cfg(not(target_os = "linux"))]
fn pause() {
    core::hint::spin_loop();
}

#[cfg(not(target_os = "linux"))]
pub fn pause_longer(_: u32) {
    pause();
}
