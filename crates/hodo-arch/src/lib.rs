//! Instruction sets: read code, move it, emit stubs. Each has a module of its own, which knows nothing of processes.
//!
//! For [`x86_64`]: `scan` finds branches and addresses in code, `entry` tells what a function does with its return address,
//! `relocate` moves instructions, `stub` and `hooks` emit code with `emit`, `frames` the unwind tables for it.
#![forbid(unsafe_code)]

pub mod x86_64;
