//! The lock under which branches are changed, shared by everything that changes code in this process
//! (`hodo_sys::lock`).

use core::sync::atomic::{AtomicU32, Ordering};

use hodo_sys::lock;

use crate::error::Error;

// A note tells tools that change keys from outside where that word is, also in files without symbols (owner `hodo`,
// type 2): they stop all threads, and wait until it is 0.
#[cfg(target_os = "linux")]
core::arch::global_asm!(
    ".pushsection .note.hodo.keys,\"\",@note",
    ".balign 4",
    ".4byte 5, 8, 2",
    ".asciz \"hodo\"",
    ".balign 4",
    ".8byte {owner}",
    ".popsection",
    owner = sym lock::OWNER,
);

/// The process in which all branches matched their keys' states when the lock was last released; 0 if none.
static SETTLED: AtomicU32 = AtomicU32::new(0);

/// The lock is held as long as this lives.
pub struct Guard(lock::Guard);

impl Guard {
    /// The process.
    pub fn process(&self) -> u32 {
        self.0.process()
    }

    /// Returns whether a thread of the parent process may have left a change unfinished when this process was forked.
    /// The lock itself does not show that: the kernel copies pages one after the other while other threads run, so the
    /// child may see the lock as it was before a change, and the key as it was after.
    pub fn unsettled(&self) -> bool {
        SETTLED.load(Ordering::Relaxed) != self.process()
    }

    /// Records that nothing is left unfinished.
    pub fn settled(&self) {
        SETTLED.store(self.process(), Ordering::Relaxed);
    }
}

/// Takes the lock. Fails if this thread already has it: a signal handler that has interrupted a change cannot wait for
/// its end.
pub fn take() -> Result<Guard, Error> {
    lock::take().map(Guard).map_err(|lock::Busy| Error::Busy)
}

/// Takes the lock, in places that no signal handler reaches.
pub fn wait() -> Guard {
    loop {
        match take() {
            Ok(guard) => return guard,
            Err(_) => lock::pause(),
        }
    }
}

/// Pauses, for those who may have to wait long. `rounds`: how often they have waited.
#[cfg(target_os = "linux")]
pub fn pause_longer(rounds: u32) {
    if rounds < 100 {
        lock::pause();
    } else {
        hodo_sys::sys::sleep(100_000);
    }
}

#[cfg(not(target_os = "linux"))]
pub fn pause_longer(_: u32) {
    lock::pause();
}
