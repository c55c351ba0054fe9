//! AArch64.

pub mod detour;
pub mod frames;
pub mod hooks;
pub mod masm;
pub mod patch;
pub mod stub;
