//! x86-64.

/// Bytes of the long jump, `jmp rel32`.
pub const JUMP: u64 = 5;

pub mod detour;
pub mod emit;
pub mod entry;
pub mod frames;
pub mod hooks;
pub mod patch;
pub mod relocate;
pub mod scan;
pub mod simulate;
pub mod steps;
pub mod stub;
pub mod track;
pub mod vectors;
