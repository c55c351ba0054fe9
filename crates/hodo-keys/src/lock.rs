//! The lock under which branches are changed, shared by all who change code in this process (`hodo_sys::lock`).

use core::sync::atomic::{AtomicU32, Ordering};

use hodo_sys::lock;

use crate::error::Error;

// A note tells tools which change keys from outside where that word is, also in files without symbols (owner `hodo`,
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

/// The process in which all branches were what their keys' states say when the lock was given back; 0 if there is none.
static SETTLED: AtomicU32 = AtomicU32::new(0);

/// The lock is held as long as this lives.
pub struct Guard(lock::Guard);

impl Guard {
    /// The process.
    pub fn process(&self) -> u32 {
        self.0.process()
    }

    /// Whether work may have been left undone by another thread of the process that this one was forked from. The lock
    /// itself does not tell: the kernel copies pages one after the other while other threads go on, so the child may
    /// have it as it was before a change, and the key as it was after.
    pub fn unsettled(&self) -> bool {
        SETTLED.load(Ordering::Relaxed) != self.process()
    }

    /// Nothing is left undone.
    pub fn settled(&self) {
        SETTLED.store(self.process(), Ordering::Relaxed);
    }
}

/// Takes it. Fails where this thread has it: a signal handler that has interrupted a change cannot wait for its end.
pub fn take() -> Result<Guard, Error> {
    lock::take().map(Guard).map_err(|lock::Busy| Error::Busy)
}

/// Takes it, in places where no signal handler can be.
pub fn wait() -> Guard {
    loop {
        match take() {
            Ok(guard) => return guard,
            Err(_) => lock::pause(),
        }
    }
}

/// For those who may have to wait long. `rounds`: how often they have waited.
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
