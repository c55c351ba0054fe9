//! What all other crates agree on: the instruction sets ([`Isa`]), ranges of addresses ([`Span`]), and the memory that
//! code in the target shares with its controller: the thread control block ([`tcb`]) and the shadow of the stack
//! ([`SHADOW_DISTANCE`]).
//!
//! `hodo-isa` describes instructions, and `hodo-trace` the files of a recording.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod isa;
mod span;
pub mod tcb;

pub use isa::Isa;
pub use span::Span;

/// The distance from a stack slot to its shadow. It is not a multiple of 4096, because loads from the slot would then
/// falsely depend on stores to the shadow (measured: 28 ns a call instead of 5).
///
/// On x86-64 it is a little more than the stacks' part of the address space, so that the shadows are close to what they
/// belong to, and leave large gaps for the program.
///
/// On RISC-V an address space may have 39 bits: a program's stack, its libraries and, if it is built to run anywhere,
/// its own data are this far above its beginning that their shadow is below all of them.
pub const SHADOW_DISTANCE: u64 = if cfg!(target_arch = "riscv64") {
    0x20_0000_0840
} else {
    0x400_0000_0840
};
