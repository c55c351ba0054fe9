//! RISC-V with 64 bits.

mod calls;
mod macros;
mod slow_paths;
mod stack;
mod syscalls;
mod trap_handler;
mod windows;

pub use slow_paths::{Runtime, call_and_home, runtime};
pub use stack::stack;
pub use trap_handler::trap_handler;
