//! Changes the code of one's own process while its threads run: what probes (`hodo-probe`) and static keys
//! (`hodo-keys`) have in common.
//!
//! [`Memory`] writes code through `/proc/self/mem`: the mapping stays read-only, executable, and backed by its file.
//! (Where the kernel lets only tracers do that, it is writable for the moment of the write.)
//! [`sys::sync_core`] then makes every processor discard what it has fetched before. The callers decide in which order
//! bytes are written, so that no thread ever executes half of an instruction.
//!
//! No C library is called. Only `Memory::read` and `Memory::change` allocate; they need the feature `alloc`.
#![no_std]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "riscv64",
    target_arch = "aarch64"
)))]
compile_error!("code of its own can be changed by programs for x86-64, RISC-V 64 and AArch64");

#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "arch/riscv64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
mod arch;
pub mod branches;
#[cfg(not(target_arch = "x86_64"))]
#[path = "arch/generic.rs"]
mod generic;
pub mod lock;
mod memory;
pub mod sys;
mod unprotected;

#[cfg(feature = "alloc")]
pub use memory::{Change, change_by};
pub use memory::{Memory, set_written, write_memory};
