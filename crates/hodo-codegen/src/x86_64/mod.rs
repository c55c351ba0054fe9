//! x86-64.

pub mod detour;
pub mod emit;
pub mod frames;
pub mod hooks;
pub mod patch;
pub mod stub;
