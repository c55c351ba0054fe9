//! x86-64.

pub(in crate::engine) mod code;
pub(in crate::engine) mod common;
mod counts;
pub(in crate::engine) mod detour;
pub(in crate::engine) mod handlers;
mod memory;
mod registers;
pub(in crate::engine) mod returns;
pub(in crate::engine) mod spots;
pub(in crate::engine) mod sys;

pub(in crate::engine) use memory::faulted;
pub use registers::Registers;
pub(in crate::engine) use registers::{Context, simulate};

/// `int3`.
const INT3: u8 = 0xCC;
/// A breakpoint.
pub(in crate::engine) const BREAKPOINT: &[u8] = &[INT3];
/// The code of the signal that a breakpoint makes: SI_KERNEL.
pub(in crate::engine) const BREAKPOINT_CODE: i32 = 0x80;
/// Bytes of the shortest and of the longest jump to a detour.
pub(in crate::engine) const SHORTEST: usize = 5;
pub(in crate::engine) const LONGEST: usize = 5;
/// Bytes of an island's code.
pub(in crate::engine) const ISLAND: u64 = 1 << 18;
/// Bytes of the counters behind it.
pub(in crate::engine) const COUNTERS: u64 = 1 << 18;
/// An island is no further from what it serves, so that what that refers to is in reach, too, mostly.
pub(in crate::engine) const REACH: u64 = 1 << 30;
