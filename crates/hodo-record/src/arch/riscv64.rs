//! 64-bit RISC-V.

mod costs;
mod vectors;

pub use costs::measure;
pub use vectors::calls;
