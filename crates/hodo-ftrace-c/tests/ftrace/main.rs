//! C and C++ programs that are linked with the library, with each way in which compilers call it.

mod build;
mod code;
mod document;
mod dynamic;
mod livepatch;
mod programs;
mod record;
#[path = "../../../hodo-tests/src/skipped.rs"]
mod skipped;
