//! The macro assembler, which is the instruction set's: moved instructions are made with it, too.

pub use hodo_isa::x86_64::asm::{Code as Masm, *};
