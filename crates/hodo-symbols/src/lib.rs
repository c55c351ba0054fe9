//! Function names and addresses of ELF files.
#![forbid(unsafe_code)]

mod functions;

pub use functions::{Function, SymbolError, functions};
