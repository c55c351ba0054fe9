//! RISC-V with 64 bits: RV64GC, the bit manipulation of Zba, Zbb and Zbs, and the vectors of V 1.0.
//!
//! [`decode`] is the ground: tables of rows (`base`, `float`, `vector`) say of each instruction which bits it has, what
//! its operands are and what sort it is of; everything else asks the decoded [`decode::Insn`]. Instructions of 16 bits are
//! expanded to those of 32 bits (`compressed`), so that nothing behind has to know them.
//!
//! [`scan`] finds branches and addresses, [`steps`] what a planner has to know of each instruction, with the sequences of `lr`
//! and `sc` (`sequences`), [`liveness`] the registers that are free. [`relocate`] moves instructions, [`simulate`] does on saved
//! registers those that use their address, [`emit`] writes jumps and addresses.

/// Bytes of the long jump, `auipc` and `jalr`.
pub const JUMP: u64 = 8;
/// Bytes of what puts the long jump's register on the stack before it: `c.addi sp, -16` and `c.sdsp REGISTER, 0(sp)`.
pub const KEEP: u64 = 4;
/// Bytes of the jump to anywhere, `auipc`, `ld` and `c.jr`, without the address that it loads.
pub const FAR: u64 = 10;

mod base;
mod compressed;
pub mod decode;
pub mod detour;
pub mod emit;
mod encode;
pub mod entry;
mod float;
pub mod frames;
pub mod hooks;
pub mod liveness;
mod operand;
mod ops;
pub mod patch;
pub mod plan;
pub mod registers;
pub mod relocate;
mod rows;
pub mod scan;
mod sequences;
pub mod simulate;
pub mod slots;
pub mod steps;
pub mod stub;
mod text;
pub mod track;
mod vector;
mod vector_memory;

pub use rows::Kind;
pub use sequences::Part;
pub use text::text;
pub use vector_memory::Pattern;
