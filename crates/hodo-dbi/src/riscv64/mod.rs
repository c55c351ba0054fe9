//! RISC-V with 64 bits. Its code can be translated; threads cannot be observed yet, and programs do not run from the
//! cache.

mod emit;

use crate::bare::{Bare, Piece, translate_bare};

/// Translates code of a program for RISC-V, with nothing inserted, for who executes it without an engine.
///
/// An exit or a target that is missing in the table has the program's `t1` at 8 bytes below `sp`. A target that is
/// missing is in `t1`, and then what the table has for it; then `t0` and `t2` are at 16 and 24 bytes below `sp`, too.
#[must_use]
pub fn translate_riscv64(piece: &Piece<'_>) -> Bare {
    translate_bare::<emit::Riscv64>(piece)
}
