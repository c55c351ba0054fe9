//! RISC-V with 64 bits: RV64GC, the bit manipulation of Zba, Zbb and Zbs, and the vectors of V 1.0.
//!
//! [`decode`] is the ground: tables of rows say of each instruction which bits it has, what its operands are and what
//! sort it is of; everything else asks the decoded [`decode::Insn`]. Instructions of 16 bits are expanded to those of
//! 32 bits, so that nothing else has to know them.
//!
//! [`scan`] finds branches and addresses, [`steps`] what a planner has to know of each instruction, with the sequences
//! of `lr` and `sc`, [`liveness`] the registers that are free. [`relocate`] moves instructions, [`simulate`] does on
//! saved registers those that use their address, [`asm`] writes jumps and addresses.

/// Bytes of the long jump, `auipc` and `jalr`.
pub const JUMP: u64 = 8;
/// Bytes of what puts the long jump's register on the stack before it: `c.addi sp, -16` and `c.sdsp REGISTER, 0(sp)`.
pub const KEEP: u64 = crate::Via::TAKE;
/// Bytes of the jump to anywhere, `auipc`, `ld` and `c.jr`, without the address that it loads.
pub const FAR: u64 = 10;

pub mod asm;
pub mod calls;
pub mod cfa;
pub mod decode;
pub mod encode;
pub mod entry;
pub mod got_calls;
pub mod isa;
pub mod liveness;
mod origin;
pub mod regs;
pub mod relocate;
pub mod scan;
pub mod simulate;
pub mod steps;
mod text;

pub use decode::{Kind, Pattern};
pub use isa::Riscv64;
pub use steps::Part;
pub use text::text;
