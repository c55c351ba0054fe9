//! RISC-V with 64 bits.
//!
//! Breakpoints are `c.ebreak`, so that one fits over every instruction. Code is written in aligned words, which the
//! kernel stores at once, and never both halves of one instruction together: no hart ever fetches half an instruction
//! of two bytes, and one of four bytes has its second half before its first.

mod asm;
pub(in crate::engine) mod code;
pub(in crate::engine) mod common;
mod counts;
pub(in crate::engine) mod detour;
pub(in crate::engine) mod handlers;
mod registers;
pub(in crate::engine) mod returns;
pub(in crate::engine) mod spots;
pub(in crate::engine) mod sys;

pub(in crate::engine) use counts::hits;
pub use registers::Registers;
pub(in crate::engine) use registers::{Context, faulted, simulate};

use super::super::maps::{self, Mapping};

/// `c.ebreak`. The program counter stays at it.
pub(in crate::engine) const BREAKPOINT: &[u8] = &[0x02, 0x90];
/// The code of the signal that a breakpoint makes: TRAP_BRKPT.
pub(in crate::engine) const BREAKPOINT_CODE: i32 = 1;
/// The signal of what stands in jumps where instructions begin, beside that of breakpoints.
pub(in crate::engine) const OTHER_TRAP: Option<i32> = Some(crate::engine::sys::SIGILL);
/// Bytes of the shortest and of the longest jump to a detour.
pub(in crate::engine) const SHORTEST: usize = 4;
pub(in crate::engine) const LONGEST: usize = 16;
/// Bytes of an island's code: not so many that nothing near is left for `spots`.
pub(in crate::engine) const ISLAND: u64 = 1 << 16;
/// Bytes of the counters after it.
pub(in crate::engine) const COUNTERS: u64 = 1 << 15;
/// How far away islands are at most: in reach of `jal`, or of `auipc` and what is after it.
const NEAR: u64 = (1 << 20) - (1 << 12);
const FAR: u64 = 1 << 30;

/// Where an island may be, near an address.
pub(in crate::engine) fn place(maps: &[Mapping], _: u64, near: u64, reach: u64) -> Option<u64> {
    let size = ISLAND + COUNTERS;
    let guards: &[u64] = if reach == NEAR {
        &[1 << 18, 1 << 16, 1 << 12]
    } else {
        &[1 << 20]
    };
    guards
        .iter()
        .find_map(|guard| maps::free(maps, near, size, reach, *guard))
}
