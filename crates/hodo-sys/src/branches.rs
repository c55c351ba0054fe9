//! The process's static branches, which those who move or overwrite code must leave alone: whoever switches them knows
//! nothing of copies.

use core::ops::Range;
use core::sync::atomic::{AtomicPtr, Ordering};

/// What knows the branches, if there are any.
static ASK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Names the function that returns whether a branch begins in some code. It may take [`lock`](crate::lock).
pub fn set(ask: fn(Range<u64>) -> bool) {
    ASK.store(ask as *mut (), Ordering::Release);
}

/// Whether a static branch begins in this code. Not to be asked by who holds [`lock`](crate::lock).
pub fn any(code: Range<u64>) -> bool {
    let ask = ASK.load(Ordering::Acquire);
    if ask.is_null() {
        return false;
    }
    // SAFETY: `set` has put it there.
    let ask: fn(Range<u64>) -> bool = unsafe { core::mem::transmute(ask) };
    ask(code)
}
