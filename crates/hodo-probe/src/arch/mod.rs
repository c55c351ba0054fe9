//! What depends on the instruction set: registers, signal contexts, and the code that is emitted and changed. Each
//! folder defines the same names; the rest of the engine uses no others.

mod calling;
#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub(crate) use calling::guarded;
#[cfg(target_arch = "riscv64")]
pub use riscv64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
