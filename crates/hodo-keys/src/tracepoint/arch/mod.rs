//! What depends on the instruction set: the probe's instruction, the registers its arguments are in, and how notes name
//! them.

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

// A thread-local word, initially zero: stable Rust has no `#[thread_local]`.
#[cfg(feature = "std")]
core::arch::global_asm!(
    ".pushsection .tbss.hodo_keys_inside,\"awT\",@nobits",
    ".balign 8",
    ".globl hodo_keys_inside",
    ".hidden hodo_keys_inside",
    ".type hodo_keys_inside,@object",
    "hodo_keys_inside: .zero 8",
    ".size hodo_keys_inside, 8",
    ".popsection",
);
