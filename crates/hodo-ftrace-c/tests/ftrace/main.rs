//! C and C++ programs that are linked with the library, with each way in which compilers call it.

mod build;
mod code;
#[cfg(target_arch = "x86_64")]
mod debugger;
mod document;
mod dynamic;
#[cfg(target_arch = "x86_64")]
mod install;
mod livepatch;
mod outside;
mod probes;
mod programs;
mod record;
#[path = "../../../hodo-tests/src/skipped.rs"]
mod skipped;
