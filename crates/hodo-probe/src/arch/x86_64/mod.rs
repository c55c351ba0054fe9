//! x86-64.

pub(crate) mod code;
pub(crate) mod common;
#[cfg(target_os = "linux")]
mod context;
mod counts;
pub(crate) mod detour;
#[cfg(target_os = "linux")]
pub(crate) mod ftrace;
mod memory;
mod registers;
pub(crate) mod returns;
mod stopped;
#[cfg(target_os = "linux")]
pub(crate) mod sys;
pub(crate) mod trampolines;

#[cfg(target_os = "linux")]
pub(crate) use context::Context;
pub(crate) use counts::hits;
pub(crate) use memory::faulted;
pub use registers::Registers;
pub(crate) use stopped::simulate;

use super::super::maps::{self, Mapping};
use hodo_isa::x86_64::asm::{self, Code, RSP, address, mem};

/// What stays free around islands.
const GUARD: u64 = 1 << 20;
/// `int3`.
const INT3: u8 = asm::BREAKPOINT[0];
/// A breakpoint.
pub(crate) const BREAKPOINT: &[u8] = &asm::BREAKPOINT;
/// The signal code of a breakpoint: SI_KERNEL.
#[cfg(target_os = "linux")]
pub(crate) const BREAKPOINT_CODE: i32 = 0x80;
/// The options of compilers that make call sites with registers.
pub(crate) const ENTRY_OPTIONS: &str = "-mfentry or -fpatchable-function-entry=5";
/// Bytes of the shortest and of the longest jump to a detour.
pub(crate) const SHORTEST: usize = 5;
pub(crate) const LONGEST: usize = 5;
/// Bytes of an island's code.
pub(crate) const ISLAND: u64 = 1 << 18;
/// Bytes of the counters after it.
pub(crate) const COUNTERS: u64 = 1 << 18;
/// The signal, other than that of breakpoints, raised by a jump's bytes where an instruction begins.
#[cfg(target_os = "linux")]
pub(crate) const OTHER_TRAP: Option<i32> = None;
/// How far an island may be from what it serves; most of what that code refers to is then in reach, too.
const REACH: u64 = 1 << 30;

/// Bytes below the stack pointer that belong to the program.
const RED_ZONE: i32 = 128;

/// `None` if code at `from` and the few bytes after it do not reach all of these addresses.
fn near(from: u64, places: &[u64]) -> Option<()> {
    const MOST: u64 = i32::MAX as u64 - 0x1000;
    let is_near = |to: &u64| to.abs_diff(from) <= MOST;
    places.iter().all(is_near).then_some(())
}

/// Calls handlers, whose head's address is at `head`, by the code that all detours share (see `common.rs`).
fn call_handlers(code: &mut Code<'_>, head: u64, common: u64) {
    code.lea(RSP, mem(RSP, -RED_ZONE));
    code.push_m(address(head));
    code.call_to(common);
    code.lea(RSP, mem(RSP, RED_ZONE + 8));
}

/// Returns whether an address is in the engine's assembly.
pub(crate) fn is_own(addr: u64) -> bool {
    #[cfg(target_os = "linux")]
    if sys::is_restorer(addr) {
        return true;
    }
    common::is_assembly(addr) || memory::is_copy(addr)
}

/// Where an island may be, near an address of a module.
pub(crate) fn place(maps: &[Mapping], module: u64, near: u64, reach: u64) -> Option<u64> {
    let size = ISLAND + COUNTERS;
    maps::free(maps, module, size, reach - (1 << 26), GUARD)
        .or_else(|| maps::free(maps, near, size, reach, GUARD))
}
