//! The engine in this process: the tests probe their own functions.

#[macro_use]
mod code;
mod children;
mod counts;
mod emulator;
mod hard;
mod lifecycle;
mod refusals;
mod returns;
#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(target_arch = "riscv64")]
#[path = "../../../hodo-tests/src/skipped.rs"]
mod skipped;
mod threads;
#[cfg(target_arch = "x86_64")]
mod x86_64;
