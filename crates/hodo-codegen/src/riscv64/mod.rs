//! RISC-V with 64 bits.

pub mod detour;
pub mod frames;
pub mod hooks;
pub mod masm;
pub mod patch;
pub mod stub;
