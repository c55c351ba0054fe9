//! RISC-V.

use core::arch::asm;

mod callers;
#[path = "../plain.rs"]
mod plain;
#[path = "../scalable.rs"]
mod scalable;
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

/// See [`crate::SHADOW_DISTANCE`]. It is also in the frame tables of `return_to_handler`. An address space may have 39
/// bits, 38 of them for programs.
pub(crate) const SHADOW_DISTANCE: usize = 0x18_0000_0840;
// As the frame tables have it.
const _: () = assert!(usize::from_le_bytes([0x40, 0x08, 0, 0, 0x18, 0, 0, 0]) == SHADOW_DISTANCE);

/// How far below the stack pointer after a return its slot may be: at the end of the frame, or below the eight
/// registers that a function with variable arguments stores there.
pub(crate) const FARTHEST_SLOT: usize = 8 + 64;

/// The address under which a call is known: its slot's.
///
/// # Safety
/// `slot` contains a return address.
#[inline]
pub(crate) unsafe fn key(slot: *const usize) -> usize {
    slot as usize
}

/// The size of the call that returns to `pc`: `auipc` and `jalr`; `jal` or `jalr`; `c.jalr`.
///
/// # Safety
/// `pc` must be the return address of a call.
pub(crate) unsafe fn call_size(pc: usize) -> usize {
    const AUIPC: u32 = 0x17;
    const JAL_RA: u32 = 0xEF;
    const JALR_RA: u32 = 0xE7;
    let half = |at: usize| {
        // SAFETY: instructions are aligned to 2 bytes, and what is read lies before `pc`, in the calling function.
        u32::from(unsafe { *((pc - at) as *const u16) })
    };
    let before = half(2);
    // `c.jalr` has no immediate; the upper half of a `jal` or `jalr` may look like one.
    let word = half(4) | before << 16;
    match word & 0xFFF {
        JAL_RA => 4,
        JALR_RA => {
            let register = word >> 15 & 31;
            let first = half(8);
            match first & 0x7F == AUIPC && first >> 7 & 31 == register {
                true => 8,
                false => 4,
            }
        }
        _ => 2,
    }
}

/// The thread pointer.
#[inline]
pub(crate) fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: it reads a register. It does not change in a thread.
    unsafe { asm!("mv {}, tp", out(reg) pointer, options(pure, nomem, nostack)) };
    pointer
}

/// Returns whether an instruction shortly before `pc` sets the frame pointer `s0` to the stack pointer plus `size`, as
/// prologues of functions with a frame pointer do: `addi s0, sp, size`, or its short form `c.addi4spn`.
///
/// # Safety
/// `pc` must be the return address of a call.
pub(crate) unsafe fn sets_frame_pointer(pc: usize, size: usize) -> bool {
    /// How far the prologue may be. It may save all registers.
    const FARTHEST: usize = 160;
    const ADDI_S0_SP: usize = 0x10413;
    let half = |at: usize| {
        // SAFETY: it lies before the call, in the function or in what is before it. No text begins with a function.
        usize::from(unsafe { *((pc - at) as *const u16) })
    };
    // Immediate operands of the short form (RISC-V ISA manual, "Integer Register-Immediate Operations" of "C").
    let short = |half: usize| {
        (half >> 11 & 3) << 4 | (half >> 7 & 15) << 6 | (half >> 6 & 1) << 2 | (half >> 5 & 1) << 3
    };
    let mut at = 4;
    while at <= FARTHEST {
        let (low, high) = (half(at), half(at - 2));
        let word = low | high << 16;
        if (low & 0xE01F == 0 && short(low) == size)
            || (word & 0xF_FFFF == ADDI_S0_SP && word >> 20 == size)
        {
            return true;
        }
        at += 2;
    }
    false
}

/// Nothing that is needed is below a stack pointer.
pub(crate) fn returns_below(_: usize) -> bool {
    false
}

/// Whether sites at entries have never called anything else than trampolines.
pub(crate) const ONLY_TRAMPOLINES: bool = true;

/// Whether the stubs that compilers call give tracers the registers.
pub(crate) const STUBS_GIVE_REGISTERS: bool = true;

/// The address under which a call is known, from its slot and the word before that.
pub(crate) fn key_with(slot: usize, _: usize) -> usize {
    slot
}
