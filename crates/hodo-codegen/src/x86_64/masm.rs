//! The macro assembler. It is that of `hodo-isa`, which also writes moved instructions.

pub use hodo_isa::x86_64::asm::{Code as Masm, *};
