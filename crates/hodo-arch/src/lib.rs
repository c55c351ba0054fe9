//! Instruction sets: read code, move it, emit stubs. Each has a module of its own, which knows nothing of processes.
//!
//! For [`x86_64`]: `scan` finds branches and addresses in code, `entry` tells what a function does with its return address,
//! `relocate` moves instructions, `stub` and `hooks` emit code with `emit`, `frames` the unwind tables for it.
#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod riscv64;
pub mod x86_64;
