//! The detour of probes: see `linked::detour`, which has what is the same for several instruction sets.
//!
//! * Flags are saved where the program needs them and the probe compares registers. Counting does not.
//! * Without LSE, one more register is needed for counting, since the processor adds by two instructions.
//! * The function may have signed its return address ([`Place::signing`]). Then return probes authenticate it, and sign
//!   the address of our code in its place.
//! * Detours lead back by `b`, or by `ret` with a register: `br` faults in guarded code. Those far away lead to pads,
//!   which are not guarded.

mod asm;

use super::masm::{Asm, Masm};
pub use super::stub::RETURN_POINT;
pub use crate::detour::*;
use crate::linked::detour;
use crate::stub::{Layout, Runtime};
pub use hodo_isa::aarch64::asm::SYSTEM_CALL;

/// Maximum length of a block's machine code in bytes.
#[must_use]
pub fn size(block: &Block, layout: &Layout) -> u64 {
    detour::size::<Asm>(block, layout)
}

/// Emits the detour of a piece of code at `code.here()`.
///
/// # Errors
/// If it cannot be emitted; then the code so far must be discarded.
pub fn emit(
    code: &mut Masm<'_>,
    layout: &Layout,
    runtime: &Runtime,
    place: &Place<'_>,
    probes: &[Probe<'_>],
) -> Result<Detour, DetourError> {
    detour::emit::<Asm>(code, layout, runtime, place, probes)
}

#[cfg(test)]
mod tests;
