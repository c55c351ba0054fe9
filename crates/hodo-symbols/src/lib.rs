//! Function names and addresses of ELF files.
#![forbid(unsafe_code)]

mod debugdata;
mod demangle;
mod functions;
mod lsda;
mod unwind;

pub use demangle::{Style, demangle};
pub use functions::{Fragment, Function, Nature, SymbolError, Symbols, functions, symbols};
pub use unwind::{Cfa, Frames, Row};
