//! Calls hooks.

use crate::arch;
use crate::state::{Vectors, state};

/// Calls the hook for entries, if there is one.
#[inline(always)]
pub(crate) fn call_entry_hook(frompc: impl FnOnce() -> usize, selfpc: usize) {
    let Some((ops, vectors)) = state().entry.get() else {
        return;
    };
    let frompc = frompc();
    if vectors == Vectors::None {
        (ops.func)(frompc, selfpc);
    } else {
        // SAFETY: the function takes these two words.
        unsafe { call_keeping(vectors, ops.func as usize, frompc, selfpc) };
    }
}

/// Calls a function with two words while the registers are kept that it may change. Returns what it returns.
///
/// # Safety
/// `function` takes no more than two words, may be called with these, and changes no other vector registers.
#[inline]
pub(crate) unsafe fn call_keeping(
    vectors: Vectors,
    function: usize,
    first: usize,
    second: usize,
) -> usize {
    // SAFETY: as the caller promises.
    unsafe {
        match vectors {
            Vectors::None | Vectors::Part => arch::call_with_part(function, first, second),
            Vectors::All => arch::call_with_vectors(function, first, second),
        }
    }
}
