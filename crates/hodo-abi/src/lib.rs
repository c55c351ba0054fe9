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
/// On RISC-V and AArch64 an address space may have 39 bits, of which programs have 38 or all. A program's stack, its
/// libraries and, if it is built to run anywhere, its own data are this far above its beginning that their shadow is
/// below all of them.
pub const SHADOW_DISTANCE: u64 = match Isa::NATIVE {
    Isa::X86_64 => 0x400_0000_0840,
    Isa::Riscv64 => 0x20_0000_0840,
    Isa::Aarch64 => 0x40_0000_0840,
};

/// The distance from the thread pointer to the word that has the address of the thread's control block. glibc reserves
/// this word for others, and does not use it. On x86-64 a segment begins at the control block instead.
pub const BLOCK_WORD: i32 = match Isa::NATIVE {
    // The word after the pointer to the thread's tables (`private` of `tcbhead_t`).
    Isa::Aarch64 => 8,
    // The word below what the thread pointer leads to.
    Isa::X86_64 | Isa::Riscv64 => -8,
};
