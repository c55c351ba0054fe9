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

pub(in crate::engine) use counts::hits;
pub(in crate::engine) use memory::faulted;
pub use registers::Registers;
pub(in crate::engine) use registers::{Context, simulate};

use super::super::maps::{self, Mapping};

/// What is left free around islands.
const GUARD: u64 = 1 << 20;
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
/// Bytes of the counters after it.
pub(in crate::engine) const COUNTERS: u64 = 1 << 18;
/// The signal of what stands in jumps where instructions begin, beside that of breakpoints.
pub(in crate::engine) const OTHER_TRAP: Option<i32> = None;
/// An island is no further from what it serves, so that what that refers to is in reach, too, mostly.
const REACH: u64 = 1 << 30;

/// Where an island may be, near an address of a module.
pub(in crate::engine) fn place(
    maps: &[Mapping],
    module: u64,
    near: u64,
    reach: u64,
) -> Option<u64> {
    let size = ISLAND + COUNTERS;
    maps::free(maps, module, size, reach - (1 << 26), GUARD)
        .or_else(|| maps::free(maps, near, size, reach, GUARD))
}
