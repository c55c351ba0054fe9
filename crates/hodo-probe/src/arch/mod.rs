//! What depends on the instruction set: registers, signal contexts, and the code that is emitted and changed. Each
//! folder defines the same names; the rest of the engine uses no others.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod calling;
#[cfg(all(
    target_os = "linux",
    any(target_arch = "aarch64", target_arch = "riscv64")
))]
mod kernel;
#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
mod sums;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
pub(crate) use calling::guarded;
#[cfg(target_arch = "riscv64")]
pub use riscv64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
