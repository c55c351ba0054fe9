//! AArch64: the A64 instructions of Armv8 and Armv9, those of vectors as far as they use general registers and memory.
//!
//! [`decode`] is the ground: tables of rows say which class an instruction is of, and [`effects`] which general
//! registers it uses, by the fields of its class. [`scan`] finds branches and addresses, [`steps`] what a planner has
//! to know of each instruction, [`relocate`] moves instructions. Code is planned; nothing is emitted for AArch64 yet
//! but what moved instructions need.

/// Bytes of an instruction.
pub const LEN: u64 = 4;
/// Bytes of the jump that patches write, `b`.
pub const JUMP: u64 = 4;
/// How far that leads in both directions; forwards one instruction less.
pub const JUMP_REACH: u64 = 1 << 27;

pub mod cfa;
pub mod decode;
pub mod effects;
pub mod encode;
pub mod entry;
pub mod isa;
mod origin;
pub mod regs;
pub mod relocate;
pub mod scan;
pub mod simulate;
pub mod steps;
mod text;

pub use decode::{Insn, Kind};
pub use isa::Aarch64;
pub use text::text;
