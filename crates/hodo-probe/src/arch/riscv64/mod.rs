//! 64-bit RISC-V.
//!
//! Breakpoints are `c.ebreak`, so that one fits over every instruction. Code is written in aligned words, which the
//! kernel stores at once, but never both halves of one instruction together. No hart ever fetches half of a two-byte
//! instruction, and a four-byte instruction gets its second half before its first.

pub(crate) mod code;
pub(crate) mod common;
#[cfg(target_os = "linux")]
mod context;
mod counts;
pub(crate) mod detour;
#[cfg(target_os = "linux")]
pub(crate) mod ftrace;
mod registers;
pub(crate) mod returns;
mod stopped;
#[cfg(target_os = "linux")]
pub(crate) mod sys;
pub(crate) mod trampolines;

pub(crate) use super::sums::hits;
pub(crate) use common::is_own;
#[cfg(target_os = "linux")]
pub(crate) use context::Context;
pub use registers::Registers;
pub(crate) use stopped::{faulted, simulate};

use super::super::maps::{self, Mapping};

/// `c.ebreak`. The program counter stays at it.
pub(crate) const BREAKPOINT: &[u8] = &hodo_isa::riscv64::asm::BREAKPOINT;
/// The signal code of a breakpoint: TRAP_BRKPT.
#[cfg(target_os = "linux")]
pub(crate) const BREAKPOINT_CODE: i32 = 1;
/// The options of compilers that make call sites with registers.
pub(crate) const ENTRY_OPTIONS: &str = "-fpatchable-function-entry=4";
/// The signal, other than that of breakpoints, raised by a jump's bytes where an instruction begins.
#[cfg(target_os = "linux")]
pub(crate) const OTHER_TRAP: Option<i32> = Some(crate::sys::SIGILL);
/// Bytes of the shortest and of the longest jump to a detour.
pub(crate) const SHORTEST: usize = 4;
pub(crate) const LONGEST: usize = 16;
/// Bytes of an island's code: small enough to leave room nearby for trampolines.
pub(crate) const ISLAND: u64 = 1 << 16;
/// Bytes of the counters after it.
pub(crate) const COUNTERS: u64 = 1 << 15;
/// How far away islands may be: in reach of `jal`, or of `auipc` and what follows it.
const NEAR: u64 = (1 << 20) - (1 << 12);
const FAR: u64 = 1 << 30;

/// Where an island may be, near an address.
pub(crate) fn place(maps: &[Mapping], _: u64, near: u64, reach: u64) -> Option<u64> {
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
