//! AArch64: the A64 instructions of Armv8 and Armv9; of vector instructions, how they use general registers and memory.
//!
//! [`decode`] is the basis: tables of rows give the class of an instruction, and [`effects`] derives from the class's
//! fields which general registers it uses. [`scan`] finds branches and addresses, [`steps`] says what a planner must
//! know about each instruction, [`relocate`] moves instructions, [`simulate`] executes on saved registers those that
//! use their own address, and [`asm`] writes code.

/// Bytes of an instruction.
pub const LEN: u64 = 4;
/// Bytes of the jump that patches write, `b`.
pub const JUMP: u64 = 4;
/// How far it reaches in both directions; forward one instruction less.
pub const JUMP_REACH: u64 = 1 << 27;
/// Bytes of the instruction that saves a register on the stack, and of the one that restores it.
pub const KEEP: u64 = crate::Via::TAKE;

pub mod asm;
pub mod calls;
pub mod cfa;
pub mod decode;
pub mod effects;
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

pub use decode::{Insn, Kind};
pub use isa::Aarch64;
pub use text::text;
