//! The macro assembler. It is that of `hodo-isa`, which also writes moved instructions. Detours are written with
//! [`Asm`], everything else with [`Masm`], where it will stay.

pub use hodo_isa::aarch64::asm::operand;
pub use hodo_isa::aarch64::asm::ops::Insns;
pub use hodo_isa::aarch64::asm::relax::Asm;
pub use hodo_isa::aarch64::asm::{Code as Masm, If, Label, OutOfRange, Reach, fill, small};
