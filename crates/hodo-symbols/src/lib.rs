//! Function names and addresses of ELF files.
#![forbid(unsafe_code)]

mod demangle;
mod functions;

pub use demangle::{Style, demangle};
pub use functions::{Function, SymbolError, functions};
