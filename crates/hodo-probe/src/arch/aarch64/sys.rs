//! What the kernel does differently per instruction set: signals, and what it says of the processor.

use core::sync::atomic::{AtomicU64, Ordering};

pub(crate) use crate::arch::kernel::{barrier, number, window};
use hodo_sys::auxv;
use hodo_sys::sys::{Errno, call};

const RT_SIGACTION: usize = 134;

/// What a signal does.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Action {
    pub handler: usize,
    pub flags: u64,
    pub mask: u64,
}

/// The kernel's form. Handlers return through the kernel's own code, so the restorer is not used.
#[repr(C)]
#[derive(Default)]
struct Raw {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Sets what a signal does, and returns what it did before.
///
/// # Safety
/// The action's handler must be a signal handler.
pub(crate) unsafe fn sigaction(signal: i32, new: Option<&Action>) -> Result<Action, Errno> {
    let new = new.map(|action| Raw {
        handler: action.handler,
        flags: action.flags,
        restorer: 0,
        mask: action.mask,
    });
    let mut old = Raw::default();
    let pointer = new.as_ref().map_or(0, |action| &raw const *action as usize);
    let args = [signal as usize, pointer, &raw mut old as usize, 8, 0, 0];
    // SAFETY: both have the kernel's form; the caller answers for the handler.
    unsafe { call(RT_SIGACTION, args) }?;
    Ok(Action {
        handler: old.handler,
        flags: old.flags,
        mask: old.mask,
    })
}

/// What the kernel says of the processor (`AT_HWCAP`).
fn features() -> u64 {
    /// The word has been read; the kernel does not use this bit.
    const KNOWN: u64 = 1 << 63;
    static WORD: AtomicU64 = AtomicU64::new(0);
    let known = WORD.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let word = auxv::own(auxv::AT_HWCAP).ok().flatten().unwrap_or(0) | KNOWN;
    WORD.store(word, Ordering::Relaxed);
    word
}

/// Returns whether there are scalable vector registers.
pub(crate) fn has_vectors() -> bool {
    const SVE: u64 = 1 << 22;
    features() & SVE != 0
}

/// Returns whether one instruction adds to memory.
pub(crate) fn has_atomics() -> bool {
    const ATOMICS: u64 = 1 << 8;
    features() & ATOMICS != 0
}
