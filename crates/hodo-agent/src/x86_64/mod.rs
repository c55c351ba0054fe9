//! x86-64.

mod announce;
mod slow_paths;
mod stack;
mod syscalls;
mod trap_handler;

pub use announce::announce;
pub use slow_paths::{Runtime, call_and_home, runtime};
pub use stack::stack;
pub use trap_handler::trap_handler;
