//! AArch64.
//!
//! Breakpoints and jumps are one word each, which the kernel stores at once. Jumps are `b`, which needs no register and
//! reaches 128 MiB; the engine's code is always that near. Where calls through registers arrive (`bti`, `paciasp`),
//! code
//! may be guarded: a breakpoint is allowed there, a jump is not.

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

/// `brk #0`. The program counter stays at it.
pub(crate) const BREAKPOINT: &[u8] = &hodo_isa::aarch64::asm::BREAKPOINT;
/// The signal code of a breakpoint: TRAP_BRKPT.
#[cfg(target_os = "linux")]
pub(crate) const BREAKPOINT_CODE: i32 = 1;
/// The options of compilers that make call sites with registers.
pub(crate) const ENTRY_OPTIONS: &str = "-fpatchable-function-entry=2";
/// The signal, other than that of breakpoints, raised by a jump's bytes where an instruction begins: no instruction
/// begins inside a jump.
#[cfg(target_os = "linux")]
pub(crate) const OTHER_TRAP: Option<i32> = None;
/// Bytes of the shortest and of the longest jump to a detour.
pub(crate) const SHORTEST: usize = 4;
pub(crate) const LONGEST: usize = 4;
/// Bytes of an island's code.
pub(crate) const ISLAND: u64 = 1 << 17;
/// Bytes of the counters after it.
pub(crate) const COUNTERS: u64 = 1 << 16;
/// How far away islands may be: in reach of `b`.
const NEAR: u64 = hodo_isa::aarch64::JUMP_REACH - (1 << 12);

/// Where an island may be, near an address.
pub(crate) fn place(maps: &[Mapping], _: u64, near: u64, reach: u64) -> Option<u64> {
    let size = ISLAND + COUNTERS;
    [1 << 20, 1 << 16, 1 << 12]
        .into_iter()
        .find_map(|guard| maps::free(maps, near, size, reach, guard))
}
