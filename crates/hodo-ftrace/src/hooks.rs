//! Calls the hook that `set_entry` has set.

use core::sync::atomic::Ordering;

use crate::arch;
use crate::state::{VECTORS, state};

/// Calls the hook for entries, if there is one.
#[inline(always)]
pub(crate) fn call_entry_hook(frompc: impl FnOnce() -> usize, selfpc: usize) {
    // SAFETY: `set_entry` has it from a reference that is valid for ever.
    let Some(ops) = (unsafe { state().entry.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    let frompc = frompc();
    if ops.flags & VECTORS == 0 {
        (ops.func)(frompc, selfpc);
    } else {
        // SAFETY: the function takes these two words.
        unsafe { arch::call_with_vectors(ops.func as usize, frompc, selfpc) };
    }
}
