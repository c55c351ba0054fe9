//! AArch64.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

mod callers;
mod prologue;
#[path = "../scalable.rs"]
mod scalable;
mod signer;
mod sites;
mod vectors;

pub use callers::Registers;
pub(crate) use callers::{SITE, redirecting};
use signer::Key;
pub(crate) use signer::{Signer, without_signature};
#[cfg(test)]
pub(crate) use sites::NOP_FOR_TESTS;
pub(crate) use sites::{
    COPIES, MANY_PAGES, REACH, STEPS, WINDOW, fix, is_done, is_site, kind, reached, step,
    trampoline,
};
pub use sites::{Form, LONGEST, TRAMPOLINE, TRAMPOLINE_PUSH, prepare};
pub(crate) use vectors::{call_with_part, call_with_vectors};

/// See [`crate::SHADOW_DISTANCE`]. It is also in the frame tables of `return_to_handler`. An address space may have 39
/// bits.
pub(crate) const SHADOW_DISTANCE: usize = 0x18_0000_0840;
// As the frame tables have it.
const _: () = assert!(usize::from_le_bytes([0x40, 0x08, 0, 0, 0x18, 0, 0, 0]) == SHADOW_DISTANCE);

/// `leave` is given an address directly above the one under which the call is known: see `stubs.rs`.
pub(crate) const FARTHEST_SLOT: usize = 8;

/// How far the caller's frame record may be above the function's.
const FARTHEST_RECORD: usize = 1 << 20;

/// The size of the call that returns to `pc`: all instructions have this size.
///
/// # Safety
/// `pc` must be the return address of a call.
pub(crate) unsafe fn call_size(_pc: usize) -> usize {
    4
}

/// The address under which a call is known: its caller's frame record, which is also in the frame pointer when
/// it returns. The return address itself is at no fixed distance from anything that is known then. 0 if the return
/// cannot be traced, because there is no such record.
///
/// # Safety
/// `slot` is the upper word of a function's frame record: it contains a return address, and the word below it is the
/// caller's frame pointer.
pub(crate) unsafe fn key(slot: *const usize) -> usize {
    // SAFETY: as the caller promises.
    let record = unsafe { slot.sub(1).read_volatile() };
    let distance = record.wrapping_sub(slot as usize);
    let is_record = distance.wrapping_sub(1) < FARTHEST_RECORD && record.is_multiple_of(8);
    if is_record { record } else { 0 }
}

/// Whether the processor signs addresses. Otherwise the instructions for that do nothing.
static SIGNS: AtomicBool = AtomicBool::new(false);

/// Finds out what the processor offers.
pub(crate) fn find_vectors() {
    // A signature may happen to be 0, but hardly all of these.
    let signs = (0..8).any(|number| {
        let address = (number + 1) << 12;
        let mut signed: usize = address;
        // SAFETY: it changes one register. (`pacia1716` is this hint.)
        unsafe {
            asm!("hint 8", inout("x17") signed, in("x16") number, options(nomem, nostack, preserves_flags));
        }
        signed != address
    });
    SIGNS.store(signs, Ordering::Relaxed);
    scalable::find();
}

/// Looks at what a function has done before it called `_mcount`, which returns to `pc`; its frame pointer is above the
/// stack pointer by this size.
///
/// # Safety
/// `pc` must be the return address of a call.
pub(crate) unsafe fn prologue(pc: usize, size: usize) -> prologue::Prologue {
    // SAFETY: as the caller promises.
    unsafe { prologue::prologue(pc, size, SIGNS.load(Ordering::Relaxed)) }
}

/// How a function signs what will be in the slot of its return address, if it has done nothing but that when it comes
/// to its site. `None` if it is signed in another way.
///
/// # Safety
/// `slot` is directly below the stack pointer, and `ip` is the address of a site.
pub(crate) unsafe fn signer_at_site(there: usize, slot: usize, ip: usize) -> Option<Signer> {
    if without_signature(there) == there && !SIGNS.load(Ordering::Relaxed) {
        return Some(Signer::Plain);
    }
    // SAFETY: no text begins with a site.
    let before = unsafe { *((ip - 4) as *const u32) };
    Signer::of(there, Key::of(before), Some(slot + size_of::<usize>()))
}

/// How a return address is signed about which nothing else is known. `None` if it is.
pub(crate) fn signer_of_plain(there: usize) -> Option<Signer> {
    Signer::of(there, None, None)
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

/// Nothing that is needed is below a stack pointer.
pub(crate) fn returns_below(_: usize) -> bool {
    false
}

/// Whether sites at entries have never called anything else than trampolines.
pub(crate) const ONLY_TRAMPOLINES: bool = true;

/// Whether the stubs that compilers call give tracers the registers.
pub(crate) const STUBS_GIVE_REGISTERS: bool = true;

/// The address under which a call is known, from its slot and the word before that: the caller's frame record.
pub(crate) fn key_with(_: usize, before: usize) -> usize {
    before
}
