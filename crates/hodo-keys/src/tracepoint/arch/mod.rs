//! What depends on the instruction set: the probe's instruction, the registers its arguments are in, and how notes name them.

#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod isa;
#[cfg(target_arch = "riscv64")]
#[path = "riscv64.rs"]
mod isa;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod isa;

#[cfg(feature = "std")]
pub use isa::inside;
pub use isa::{probe, register};
