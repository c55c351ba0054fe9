//! The macro assembler, which is the instruction set's: moved instructions are made with it, too. Detours are written
//! with [`Asm`], all else where it will stay.

pub(super) use hodo_isa::riscv64::asm::relax::{Asm, Op, small};
pub use hodo_isa::riscv64::asm::{Code as Masm, If, Label, OutOfRange, Reach, fill};
