//! x86-64.

mod announce;
mod slow_paths;
mod stack;
mod syscalls;

pub use announce::announce;
pub use slow_paths::{Runtime, runtime};
pub use stack::stack;
