//! What the stubs of `mcount` and `__fentry__` call when somebody listens.

use crate::shadow::original_return;
use crate::{arch, dynamic, environment, graph};

/// Calls the hooks for an entry. `slot` is where the return address of the function is, `frame_pointer` its caller's
/// frame pointer, and `back` the return address of the stub. `registers` is null if the stub gives none
/// ([`arch::STUBS_GIVE_REGISTERS`]). `signer` says how the slot's address is signed.
///
/// # Safety
/// This is so, and the stub has saved all general registers.
pub(crate) unsafe fn enter(
    slot: *mut usize,
    frame_pointer: usize,
    back: usize,
    registers: *mut arch::Registers,
    signer: arch::Signer,
) {
    let Some(thread) = environment::thread() else {
        return;
    };
    if !thread.start_hook(slot as usize) {
        return;
    }
    // SAFETY: `back` is the return address of a call.
    let selfpc = back.wrapping_sub(unsafe { arch::call_size(back) });
    let mask = dynamic::mask_of_static(selfpc);
    // SAFETY: the function has not returned.
    let frompc = unsafe { original_return(slot) };
    dynamic::call_tracers(thread, selfpc, frompc, mask, registers);
    if mask & dynamic::GRAPH != 0 {
        // SAFETY: as the caller promises; whoever set the hooks keeps them.
        unsafe {
            let places = (arch::key(slot), slot as usize);
            graph::push(thread, slot, places, selfpc, frame_pointer, Some(signer));
        };
    }
    thread.end_hook();
}
