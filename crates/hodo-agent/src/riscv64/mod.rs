//! RISC-V with 64 bits.

mod calls;
mod macros;
mod slow_paths;
mod stack;
mod syscalls;
mod windows;

pub use slow_paths::{Runtime, runtime};
pub use stack::stack;
