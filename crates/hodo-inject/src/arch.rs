//! What depends on the processor in an address space: where things are in it, and the bytes of calls and jumps. All
//! other code of this crate is the same for all processors. What those share whose calls put the return address in a
//! register is in `linked`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(target_arch = "x86_64"))]
mod linked;
#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// Where signal handlers tell the kernel the address to which they return.
#[derive(Debug, Clone, Copy)]
pub struct Restorer {
    /// The flag that says that they do: `SA_RESTORER`.
    pub flag: u64,
}

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "riscv64")]
pub use riscv64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
