//! AArch64.

pub mod detour;
pub mod masm;
