//! The macro assembler. It is that of `hodo-isa`, which also writes moved instructions. Detours are written with
//! [`Asm`], everything else with [`Masm`], where it will stay.

pub(super) use hodo_isa::riscv64::asm::ops::Insns;
pub(super) use hodo_isa::riscv64::asm::relax::{Asm, Op, small};
pub use hodo_isa::riscv64::asm::{Code as Masm, If, Label, OutOfRange, Reach, fill};
