//! What all others agree on: which instruction sets there are ([`Isa`]), and the memory that code in the target and its
//! controller share: the thread control block ([`tcb`]) and the shadow of the stack ([`SHADOW_DISTANCE`]).
//!
//! What an instruction is stands in `hodo-isa`, the files of a recording in `hodo-trace`.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod isa;
pub mod tcb;

pub use isa::Isa;

/// Distance from a stack slot to its shadow. Not a multiple of 4096, or loads from the slot would falsely depend on
/// stores to the shadow (measured: 28 ns a call instead of 5).
///
/// On RISC-V an address space may have 39 bits: a program's stack, its libraries and, if it is built to run anywhere,
/// its own data are this far above its beginning that their shadow is below all of them.
pub const SHADOW_DISTANCE: u64 = if cfg!(target_arch = "riscv64") {
    0x20_0000_0840
} else {
    0x1000_0000_0840
};
