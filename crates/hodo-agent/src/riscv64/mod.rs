//! RISC-V with 64 bits.

mod calls;
mod home;
mod macros;
mod slow_paths;
mod syscalls;
mod trap_handler;
mod windows;

pub use home::call_and_home;

pub use crate::linked::{Runtime, runtime, stack, trap_handler};
