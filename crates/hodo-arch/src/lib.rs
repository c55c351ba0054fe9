//! Instruction sets: decode, relocate, emit. All that depends on an instruction set is in a module of its own.
#![forbid(unsafe_code)]

pub mod x86_64;
