//! What instructions are: read code, follow it, move it. Each instruction set has a module of its own, which knows
//! nothing of processes; [`code`] reads the code of any of them, as planners do, who learn from a file which one it is.
//!
//! The modules of the sets have the same names: `scan` finds branches and addresses in code, `steps` what a planner of
//! probes has to know of each instruction, `entry` what a function does with its return address, `origin` where jumps
//! through registers lead. `text` writes instructions for people, `relocate` moves them, `simulate` does on saved
//! registers what some of them do, and `cfa` follows the frame. `asm` writes instructions, with the labels of
//! [`buffer`]. What RISC-V and AArch64 share is in [`linked`], [`relocate`] and `sequences`.
#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod aarch64;
pub mod branch;
pub mod buffer;
pub mod calls;
pub mod cfa;
pub mod code;
pub mod linked;
pub mod relocate;
pub mod riscv64;
mod sequences;
pub mod x86_64;

/// The instruction set that this is built for, which is that of the processes that it can trace.
#[cfg(target_arch = "aarch64")]
pub use aarch64 as native;
/// The instruction set that this is built for, which is that of the processes that it can trace.
#[cfg(target_arch = "riscv64")]
pub use riscv64 as native;
#[cfg(target_arch = "x86_64")]
pub use x86_64 as native;

pub use branch::{JumpForm, Via};
pub use code::{InstructionSet, instruction_set};

/// The one of the processes that this is built for.
#[cfg(target_arch = "aarch64")]
pub const NATIVE: &dyn InstructionSet = &aarch64::Aarch64;
/// The one of the processes that this is built for.
#[cfg(target_arch = "riscv64")]
pub const NATIVE: &dyn InstructionSet = &riscv64::Riscv64;
/// The one of the processes that this is built for.
#[cfg(target_arch = "x86_64")]
pub const NATIVE: &dyn InstructionSet = &x86_64::X86_64;
