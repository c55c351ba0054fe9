//! The process's static branches, which code that moves or overwrites instructions must leave alone: whoever switches a
//! branch knows nothing of copies.

use core::ops::Range;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The function that knows the branches, if any.
static ASK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the function that returns whether a branch begins in a range of code. It may take [`lock`](crate::lock).
pub fn set(ask: fn(Range<u64>) -> bool) {
    ASK.store(ask as *mut (), Ordering::Release);
}

/// Returns whether a static branch begins in this code. Must not be called while holding [`lock`](crate::lock).
pub fn any(code: Range<u64>) -> bool {
    let ask = ASK.load(Ordering::Acquire);
    if ask.is_null() {
        return false;
    }
    // SAFETY: `set` has put it there.
    let ask: fn(Range<u64>) -> bool = unsafe { core::mem::transmute(ask) };
    ask(code)
}
