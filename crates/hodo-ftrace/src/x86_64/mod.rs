//! x86-64.

use core::arch::asm;

mod callers;
#[path = "../plain.rs"]
mod plain;
pub(crate) mod quick;
mod sites;
mod vectors;

pub use callers::Registers;
pub(crate) use callers::{SITE, redirecting};
pub(crate) use plain::{Signer, signer_at_site, signer_of_plain, without_signature};
#[cfg(test)]
pub(crate) use sites::NOP_FOR_TESTS;
pub(crate) use sites::{
    COPIES, MANY_PAGES, REACH, STEPS, WINDOW, fix, is_done, is_site, kind, reached, step,
    trampoline,
};
pub use sites::{Form, LONGEST, TRAMPOLINE, TRAMPOLINE_PUSH, prepare};
pub(crate) use vectors::{call_with_part, call_with_vectors, find_vectors};

/// See [`crate::SHADOW_DISTANCE`]. It is also in the frame tables of `return_to_handler`.
pub(crate) const SHADOW_DISTANCE: usize = 0x1800_0000_0840;
// As the frame tables have it.
const _: () = assert!(usize::from_le_bytes([0x40, 0x08, 0, 0, 0, 0x18, 0, 0]) == SHADOW_DISTANCE);

/// How far below the stack pointer after a return its slot may be: `ret` has just read it.
pub(crate) const FARTHEST_SLOT: usize = 8;

/// The address under which a call is known: its slot's.
///
/// # Safety
/// `slot` contains a return address.
#[inline]
pub(crate) unsafe fn key(slot: *const usize) -> usize {
    slot as usize
}

/// The size of the call that returns to `pc`: `call rel32`; `call *slot(%rip)`, as gcc emits for code that may be
/// anywhere; or the latter as linkers shorten it, with a prefix that means nothing.
///
/// # Safety
/// `pc` must be the return address of one of these.
pub(crate) unsafe fn call_size(pc: usize) -> usize {
    let code = |before: usize| {
        // SAFETY: the shorter call has five bytes, and one byte before it is readable: a function is never at the
        // beginning of a file.
        unsafe { *((pc - before) as *const u8) }
    };
    match (code(6), code(5)) {
        (0x67, 0xE8) => 6,
        (_, 0xE8) => 5,
        _ => 6,
    }
}

/// The thread pointer: the first word of a thread's segment. (ELF Handling For Thread-Local Storage, section 3.4.6.)
#[inline]
pub(crate) fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: an environment that has a thread offset has a thread pointer. It does not change in a thread.
    unsafe {
        asm!("mov {}, fs:0", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
    }
    pointer
}

/// Returns whether a thread with this program counter may be about to jump to the address that is below its stack
/// pointer.
pub(crate) fn returns_below(pc: usize) -> bool {
    unsafe extern "C" {
        static hodo_ftrace_return_to_handler: u8;
        static hodo_ftrace_return_end: u8;
    }
    let from = &raw const hodo_ftrace_return_to_handler as usize;
    (from..&raw const hodo_ftrace_return_end as usize).contains(&pc)
}

/// Whether sites at entries have never called anything else than trampolines.
pub(crate) const ONLY_TRAMPOLINES: bool = false;

/// Whether the stubs that compilers call give tracers the registers.
pub(crate) const STUBS_GIVE_REGISTERS: bool = false;

/// The address under which a call is known, from its slot and the word before that.
pub(crate) fn key_with(slot: usize, _: usize) -> usize {
    slot
}
