//! 64-bit RISC-V: RV64GC, the bit manipulation extensions Zba, Zbb and Zbs, and the vector extension V 1.0.
//!
//! [`decode`] is the basis: tables of rows give each instruction's fixed bits, its operands and its kind; everything
//! else asks the decoded [`decode::Insn`]. 16-bit instructions are expanded to 32-bit ones, so nothing else has to know
//! them.
//!
//! [`scan`] finds branches and addresses; [`steps`] says what a planner must know about each instruction, including
//! sequences of `lr` and `sc`. [`relocate`] moves instructions,
//! [`simulate`] executes on saved registers those that use their own address, and [`asm`] writes code.

/// Bytes of the long jump, `auipc` and `jalr`.
pub const JUMP: u64 = 8;
/// Bytes of the instructions that save the long jump's register on the stack before it: `c.addi sp, -16` and `c.sdsp
/// REGISTER, 0(sp)`.
pub const KEEP: u64 = crate::Via::TAKE;
/// Bytes of the jump to anywhere, `auipc`, `ld` and `c.jr`, not counting the address that it loads.
pub const FAR: u64 = 10;

pub mod asm;
pub mod calls;
pub mod cfa;
pub mod decode;
pub mod encode;
pub mod entry;
pub mod got_calls;
pub mod isa;
mod origin;
pub mod regs;
pub mod relocate;
pub mod scan;
pub mod simulate;
pub mod steps;
pub mod syscalls;
mod text;
pub mod vectors;

pub use decode::{Kind, Pattern};
pub use isa::Riscv64;
pub use steps::Part;
pub use text::text;
