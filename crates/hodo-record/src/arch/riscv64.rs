//! RISC-V of 64 bits.

mod costs;
mod vectors;

pub use costs::measure;
pub use vectors::calls;
