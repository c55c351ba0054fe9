//! 64-bit RISC-V.

mod vectors;

pub use super::linked::measure;
pub use super::unchecked::{guards_returns, will_guard_returns};
pub use vectors::calls;
