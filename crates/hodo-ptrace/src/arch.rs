//! What depends on the processor: a stopped thread's registers, how it calls the kernel, its signal frames, and where
//! it finds its control block. Each instruction set has a folder with the same file names. What those share whose calls
//! put the return address in a register is in `linked`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(target_arch = "x86_64"))]
mod linked;
#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "riscv64")]
pub use riscv64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
