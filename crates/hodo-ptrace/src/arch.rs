//! What of stopped threads depends on the processor: their registers, how they call the kernel, what it puts on stacks
//! for signal handlers, and where a thread finds its control block. Each instruction set has a folder with files of the
//! same names.

#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "riscv64")]
pub use riscv64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
