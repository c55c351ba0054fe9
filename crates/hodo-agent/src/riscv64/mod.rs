//! RISC-V with 64 bits.

mod calls;
mod macros;
mod slow_paths;
mod syscalls;
mod trap_handler;
mod windows;

pub use crate::linked::{Runtime, call_and_home, runtime, stack, trap_handler};
