//! 64-bit RISC-V.

mod vectors;

pub use super::linked::measure;
pub use vectors::calls;
