//! AArch64.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

mod callers;
#[path = "../scalable.rs"]
mod scalable;
mod sites;
mod vectors;

pub use callers::Registers;
pub(crate) use callers::{SITE, redirecting};
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
/// cannot be traced: there is no such record, or the return address is signed.
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

/// What the prologue of a function does.
pub(crate) struct Prologue {
    /// It sets the frame pointer to the stack pointer plus the size in question.
    pub(crate) sets_frame_pointer: bool,
    /// It signs the return address.
    pub(crate) signs: bool,
}

/// Looks at the instructions before `pc`, up to the one that stores the frame record, and, for the signing, before it.
///
/// # Safety
/// `pc` must be the return address of a call.
pub(crate) unsafe fn prologue(pc: usize, size: usize) -> Prologue {
    /// How far the record may be stored before the call, in bytes. A prologue may save all registers.
    const FARTHEST: usize = 160;
    /// How far the signing may be before that.
    const BEFORE_RECORD: usize = 48;
    const ADD_X29_SP: u32 = 0x9100_03FD;
    /// `stp x29, x30, [sp, #…]`, also with `!`.
    const STORES_RECORD: u32 = 0xA900_7BFD;
    const PACIASP: u32 = 0xD503_233F;
    const PACIBSP: u32 = 0xD503_237F;
    const RET: u32 = 0xD65F_03C0;
    const NOP: u32 = 0xD503_201F;
    let word = |at: usize| {
        // SAFETY: it lies before the call, in the function or in what is before it. No text begins with a function.
        unsafe { *((pc - at) as *const u32) }
    };
    let mut result = Prologue {
        sets_frame_pointer: false,
        signs: false,
    };
    let mut at = 8;
    while at <= FARTHEST && word(at) & 0xFF40_7FFF != STORES_RECORD {
        let immediate = (word(at) >> 10 & 0xFFF) as usize;
        result.sets_frame_pointer |= word(at) & 0xFFC0_03FF == ADD_X29_SP && immediate == size;
        at += 4;
    }
    if SIGNS.load(Ordering::Relaxed) {
        let last = at + BEFORE_RECORD;
        // Before the function, there are the end of another one, or instructions that do nothing.
        while at < last && !result.signs && !matches!(word(at), RET | NOP) {
            result.signs = matches!(word(at), PACIASP | PACIBSP);
            at += 4;
        }
    }
    result
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
pub(crate) const STUBS_GIVE_REGISTERS: bool = false;

/// The address under which a call is known, from its slot and the word before that: the caller's frame record.
pub(crate) fn key_with(_: usize, before: usize) -> usize {
    before
}
