//! Changes the code of one's own process while its threads run: what probes (`hodo-probe`), static keys (`hodo-keys`)
//! and function tracing (`hodo-ftrace`) have in common.
//!
//! All of them write code by the trait [`Text`], and get memory by the trait [`Pages`]: a kernel implements each once.
//! [`poke`] writes changes that are near each other together.
//!
//! On Linux, [`Memory`] writes code through `/proc/self/mem`: the mapping stays read-only, executable, and backed by
//! its file. (Where the kernel lets only tracers do that, it is writable for the moment of the write.)
//! [`sys::sync_core`] then makes every processor discard what it has fetched before. The callers decide in which order
//! bytes are written, so that no thread ever executes half of an instruction.
//!
//! Emulators of one process (qemu's user mode) do not notice such writes. That is tried out before the first one, and
//! they are helped then: the pages become writable for a moment after each write.
//!
//! No C library is called. Only `Memory::read` allocates; it needs the feature `alloc`.
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
pub mod auxv;
pub mod branches;
#[cfg(not(target_arch = "x86_64"))]
#[path = "arch/generic.rs"]
mod generic;
mod host;
pub mod lock;
pub mod maps;
mod memory;
mod noticed;
pub mod poke;
pub mod sys;
mod unprotected;

pub use host::{EIO, ENOSYS, Errno, Mapping, Page, Pages, Text, Use};
pub use memory::{Memory, Process, set_written};
pub use noticed::is_noticed;
