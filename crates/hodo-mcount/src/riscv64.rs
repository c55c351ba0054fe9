//! The functions that compilers call at entries on RISC-V.
//!
//! These calls are ordinary calls: they come after the prologue, and the compiler preserves what it needs across them.
//! gcc and clang call `_mcount` with the return address of the function as the only argument; rustc calls `mcount`.

use core::arch::naked_asm;

use super::entry;

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

/// Called by `-pg` after the prologue, with the address to which the function returns.
///
/// # Safety
/// Only compiler-made code may call it.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _mcount() {
    naked_asm!("mv a1, ra", "tail {entry}", entry = sym entry);
}

/// The same under the name that rustc calls.
///
/// # Safety
/// As [`_mcount`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mcount() {
    naked_asm!("mv a1, ra", "tail {entry}", entry = sym entry);
}
