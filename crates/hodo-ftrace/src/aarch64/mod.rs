//! AArch64.

use core::arch::asm;

mod callers;
mod sites;
mod vectors;

pub use callers::Registers;
pub use sites::{Form, TRAMPOLINE, TRAMPOLINE_PUSH, prepare};
pub(crate) use sites::{
    LONGEST, REACH, STEPS, fix, is_done, is_site, kind, step, trampoline, trampoline_key,
};
pub(crate) use vectors::{call_with_vectors, find_vectors};

/// See [`crate::SHADOW_DISTANCE`]. It is also in the frame tables of `return_to_handler`. An address space may have 39
/// bits.
pub(crate) const SHADOW_DISTANCE: usize = 0x18_0000_0840;
// As the frame tables have it.
const _: () = assert!(usize::from_le_bytes([0x40, 0x08, 0, 0, 0x18, 0, 0, 0]) == SHADOW_DISTANCE);

/// `leave` is given an address directly above the one under which the call is known: see `stubs.rs`.
pub(crate) const FARTHEST_SLOT: usize = 8;

/// How far the caller's frame record may be above that of the function.
const FARTHEST_RECORD: usize = 1 << 20;

/// The size of the call that returns to `pc`: all instructions have this size.
///
/// # Safety
/// `pc` must be the return address of a call.
pub(crate) unsafe fn call_size(_pc: usize) -> usize {
    4
}

/// The address under which a call is known: that of its caller's frame record, which is also in the frame pointer when it
/// returns. The return address itself is at no fixed distance from anything that is known then. 0 if the return cannot
/// be traced: there is no such record, or the return address is signed.
///
/// # Safety
/// `slot` is the upper word of a function's frame record: it contains a return address, and the word below it is the
/// caller's frame pointer.
pub(crate) unsafe fn key(slot: *const usize) -> usize {
    // SAFETY: as the caller promises.
    let (there, record) = unsafe { (slot.read_volatile(), slot.sub(1).read_volatile()) };
    let distance = record.wrapping_sub(slot as usize);
    let is_record = distance.wrapping_sub(1) < FARTHEST_RECORD && record.is_multiple_of(8);
    match is_record && without_signature(there) == there {
        true => record,
        false => 0,
    }
}

/// A return address without the signature that `paciasp` adds (`-mbranch-protection`). Processors without signatures
/// ignore the instruction.
pub(crate) fn without_signature(mut address: usize) -> usize {
    // SAFETY: this changes one register. (`xpaclri` is this hint.)
    unsafe { asm!("hint 7", inout("x30") address, options(pure, nomem, nostack, preserves_flags)) };
    address
}

/// Returns whether an instruction shortly before `pc` sets the frame pointer to the stack pointer plus `size`, as
/// prologues of functions with a frame pointer do; and whether the function signs its return address.
///
/// # Safety
/// `pc` must be the return address of a call.
pub(crate) unsafe fn prologue(pc: usize, size: usize) -> (bool, bool) {
    /// How far the prologue may be. It may save all registers.
    const FARTHEST: usize = 160;
    /// How far the signing may be before the frame record is stored.
    const BEFORE_RECORD: usize = 48;
    const ADD_X29_SP: u32 = 0x9100_03FD;
    /// `stp x29, x30, [sp, #…]`, also with `!`.
    const STORES_RECORD: u32 = 0xA900_7BFD;
    const PACIASP: u32 = 0xD503_233F;
    const PACIBSP: u32 = 0xD503_237F;
    let (mut sets, mut signs) = (false, false);
    let (mut at, mut last) = (8, FARTHEST);
    while at <= last {
        // SAFETY: it lies before the call, in the function or in what is before it. No text begins with a function.
        let word = unsafe { *((pc - at) as *const u32) };
        let immediate = (word >> 10 & 0xFFF) as usize;
        sets |= word & 0xFFC0_03FF == ADD_X29_SP && immediate == size;
        signs |= word == PACIASP || word == PACIBSP;
        if word & 0xFF40_7FFF == STORES_RECORD && last == FARTHEST {
            last = at + BEFORE_RECORD;
        }
        at += 4;
    }
    (sets, signs)
}

/// The thread pointer.
#[inline]
pub(crate) fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: it reads a register. It does not change in a thread.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags));
    }
    pointer
}
