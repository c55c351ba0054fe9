//! The code that Hodoscope puts into programs: stubs, detours, hooks, the jumps to them and back, and unwind tables for
//! all of it. [`hodo_isa`] deals with the program's own instructions and with moving them.
//!
//! What the instruction sets share is in modules of this crate. Each set has modules with the same names: `stub`
//! records a function's calls, `detour` does what probes ask for, `hooks` are placed in front of functions of the C
//! library, `patch` writes the jumps from a site to these, and `frames` writes the unwind tables.
//!
//! The engine (`hodo-dbi`) writes its own code. It has two modules in common with what is here: `reserve` says which
//! registers our code works with, and `statemap` what our instructions stand for.
#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod aarch64;
pub mod arena;
pub mod detour;
pub mod frames;
pub mod hooks;
mod linked;
mod lower;
pub mod patch;
pub mod reserve;
pub mod riscv64;
pub mod statemap;
pub mod stub;
pub mod x86_64;

/// The instruction set that this is built for, which is that of the processes it can trace.
#[cfg(target_arch = "aarch64")]
pub use aarch64 as native;
/// The instruction set that this is built for, which is that of the processes it can trace.
#[cfg(target_arch = "riscv64")]
pub use riscv64 as native;
#[cfg(target_arch = "x86_64")]
pub use x86_64 as native;
