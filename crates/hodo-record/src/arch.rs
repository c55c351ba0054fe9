//! The parts of a recording that depend on the processor: what a call costs, and which registers the agent must
//! preserve.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(target_arch = "x86_64"))]
mod linked;
#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(not(target_arch = "aarch64"))]
mod unchecked;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "riscv64")]
pub use riscv64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
