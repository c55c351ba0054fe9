//! x86-64.

/// Bytes of the long jump, `jmp rel32`.
pub const JUMP: u64 = 5;

pub mod asm;
pub mod calls;
pub mod cfa;
pub mod decode;
pub mod entry;
pub mod interpret;
pub mod isa;
pub mod operands;
mod origin;
pub mod relocate;
pub mod scan;
pub mod simulate;
pub mod steps;
pub mod syscalls;
mod text;
pub mod vectors;

pub use isa::X86_64;
pub use text::text;
