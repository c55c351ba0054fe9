//! AArch64.

mod vectors;

pub use super::linked::measure;
pub use vectors::calls;
