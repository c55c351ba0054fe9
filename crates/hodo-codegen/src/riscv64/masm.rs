//! Code that is written for a known address. Moved instructions are made of it, too, so `hodo-isa` has it.

pub use hodo_isa::riscv64::asm::{Code as Masm, OutOfRange, Pending, Reach, fill};
