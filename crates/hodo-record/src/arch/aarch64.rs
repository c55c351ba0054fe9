//! AArch64.

mod returns;
mod vectors;

pub use super::linked::measure;
pub use returns::{guards_returns, will_guard_returns};
pub use vectors::calls;
