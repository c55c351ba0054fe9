//! The detour of probes: see `linked::detour`, which has what is the same for several
//! instruction sets.

mod asm;

use super::masm::{Asm, Masm};
pub use crate::detour::*;
use crate::linked::detour;
use crate::stub::{Layout, Runtime};
pub use hodo_isa::riscv64::asm::SYSTEM_CALL;

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
