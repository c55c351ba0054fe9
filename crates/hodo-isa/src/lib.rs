//! What instructions are: reads code, follows it, moves it. Each instruction set has its own module, which knows
//! nothing of processes. [`code`] reads the code of any of them; planners use it, since they learn the instruction set
//! from a file.
//!
//! The modules of the sets have the same names: `scan` finds branches and addresses in code; `steps` says what a
//! planner of probes must know about each instruction; `entry` says what a function does with its return address;
//! `origin` finds where jumps through registers lead. `text` writes instructions for people, `relocate` moves them,
//! `simulate` executes some of them on saved registers, and `cfa` follows the frame. `asm` writes instructions, with
//! the labels of [`buffer`]. [`effects`] has the words for what they do, [`liveness`] what is used from a place on, and
//! [`clobbers`] which vector registers a function may change, by each set's `vectors`. What RISC-V and AArch64 share is
//! in [`linked`], [`relocate`] and `sequences`.
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
pub mod clobbers;
pub mod code;
pub mod effects;
pub mod linked;
pub mod liveness;
pub mod relocate;
pub mod riscv64;
mod sequences;
pub mod syscalls;
pub mod x86_64;

/// The instruction set that this is built for, which is that of the processes it can trace.
#[cfg(target_arch = "aarch64")]
pub use aarch64 as native;
/// The instruction set that this is built for, which is that of the processes it can trace.
#[cfg(target_arch = "riscv64")]
pub use riscv64 as native;
#[cfg(target_arch = "x86_64")]
pub use x86_64 as native;

pub use branch::{JumpForm, Signing, Via};
pub use code::{InstructionSet, instruction_set};

/// The instruction set that this is built for, as planners see it.
#[cfg(target_arch = "aarch64")]
pub const NATIVE: &dyn InstructionSet = &aarch64::Aarch64;
/// The instruction set that this is built for, as planners see it.
#[cfg(target_arch = "riscv64")]
pub const NATIVE: &dyn InstructionSet = &riscv64::Riscv64;
/// The instruction set that this is built for, as planners see it.
#[cfg(target_arch = "x86_64")]
pub const NATIVE: &dyn InstructionSet = &x86_64::X86_64;
