//! C and C++ programs with static keys, for each instruction set, by gcc and clang.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod build;
mod document;
mod mixed;
mod programs;
#[path = "../../../hodo-tests/src/skipped.rs"]
mod skipped;
