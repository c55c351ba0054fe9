//! x86-64.

pub(crate) mod code;
pub(crate) mod common;
mod counts;
pub(crate) mod detour;
pub(crate) mod handlers;
mod memory;
mod registers;
pub(crate) mod returns;
pub(crate) mod sys;
pub(crate) mod trampolines;

pub(crate) use counts::hits;
pub(crate) use memory::faulted;
pub use registers::Registers;
pub(crate) use registers::{Context, simulate};

use super::super::maps::{self, Mapping};

/// What stays free around islands.
const GUARD: u64 = 1 << 20;
/// `int3`.
const INT3: u8 = 0xCC;
/// A breakpoint.
pub(crate) const BREAKPOINT: &[u8] = &[INT3];
/// The signal code of a breakpoint: SI_KERNEL.
pub(crate) const BREAKPOINT_CODE: i32 = 0x80;
/// Bytes of the shortest and of the longest jump to a detour.
pub(crate) const SHORTEST: usize = 5;
pub(crate) const LONGEST: usize = 5;
/// Bytes of an island's code.
pub(crate) const ISLAND: u64 = 1 << 18;
/// Bytes of the counters after it.
pub(crate) const COUNTERS: u64 = 1 << 18;
/// The signal, other than that of breakpoints, raised by a jump's bytes where an instruction begins.
pub(crate) const OTHER_TRAP: Option<i32> = None;
/// How far an island may be from what it serves; most of what that code refers to is then in reach, too.
const REACH: u64 = 1 << 30;

/// The four bytes of a distance, if it fits.
fn distance(from: u64, to: u64) -> Option<[u8; 4]> {
    i32::try_from(to.wrapping_sub(from).cast_signed())
        .ok()
        .map(i32::to_le_bytes)
}

/// Returns whether an address is in the engine's assembly.
pub(crate) fn is_own(addr: u64) -> bool {
    common::is_assembly(addr) || memory::is_copy(addr)
}

/// Where an island may be, near an address of a module.
pub(crate) fn place(maps: &[Mapping], module: u64, near: u64, reach: u64) -> Option<u64> {
    let size = ISLAND + COUNTERS;
    maps::free(maps, module, size, reach - (1 << 26), GUARD)
        .or_else(|| maps::free(maps, near, size, reach, GUARD))
}
