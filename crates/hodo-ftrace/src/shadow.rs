//! Where the return addresses of traced functions are.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::arch;

/// The distance from a stack slot to its shadow. It is not a multiple of 4096: otherwise loads from the slot would
/// falsely depend on stores to the shadow. It is not the distance that `hodo record` uses, so that a recorded program
/// can trace itself.
pub const SHADOW_DISTANCE: usize = arch::SHADOW_DISTANCE;

unsafe extern "C" {
    /// In `stubs.rs`. It is found by its name, because what is there uses this file.
    static hodo_ftrace_return_to_handler: u8;
}

/// The address to which traced functions return.
pub(crate) fn return_to_handler() -> usize {
    &raw const hodo_ftrace_return_to_handler as usize
}

/// The shadow of a slot.
///
/// # Safety
/// The shadow of this slot is mapped, and stays so.
pub(crate) unsafe fn shadow(slot: usize) -> &'static AtomicUsize {
    // SAFETY: the caller promises that there is memory; it is only used for atomic words.
    unsafe { &*(slot.wrapping_sub(SHADOW_DISTANCE) as *const AtomicUsize) }
}

/// Returns the return address that belongs to a stack slot: what is in it, or what it contained before its function was
/// traced, without a signature. Unwinders that do not read frame tables need this; the kernel's name is
/// `ftrace_graph_ret_addr`.
///
/// # Safety
/// `slot` contains the return address of a function that has not returned.
pub unsafe fn original_return(slot: *const usize) -> usize {
    // SAFETY: as the caller promises.
    let there = arch::without_signature(unsafe { slot.read_volatile() });
    if there != return_to_handler() {
        return there;
    }
    // SAFETY: as above.
    original(there, unsafe { arch::key(slot) })
}

/// The original of a return address, which is in its slot or will be, without a signature.
pub(crate) fn original(there: usize, slot: usize) -> usize {
    let there = arch::without_signature(there);
    if there != return_to_handler() {
        return there;
    }
    // SAFETY: whoever put this address there has written the shadow before.
    unsafe { shadow(slot) }.load(Ordering::Relaxed)
}
