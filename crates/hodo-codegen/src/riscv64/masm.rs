//! The macro assembler. There are two ways to write code:
//!
//! * [`Masm`] writes it where it will stay: each instruction is final, and only branches ahead are put right later.
//!   Moved instructions are made of it, too, so `hodo-isa` has it.
//! * `Asm` keeps it until all of it is known: instructions take 16 bits where they can, and branches become as long
//!   as they have to be.

mod relax;
mod short;

pub(super) use crate::buffer::Label;
pub use hodo_isa::riscv64::asm::{Code as Masm, OutOfRange, Pending, Reach, fill};
pub(super) use relax::{Asm, If, Op, small};
