//! Function names and addresses of ELF files, their unwind tables, and demangling.
//!
//! Stripped files have functions, too: [`symbols`] takes those that the unwind tables describe.
#![forbid(unsafe_code)]

mod abi;
mod callers;
mod debugdata;
mod demangle;
mod dwarf;
mod functions;
pub mod glob;
mod imports;
mod keys;
mod lsda;
mod signals;
mod startup;
mod unwind;
mod usdt;

pub use abi::isa_of;
pub use callers::{Caller, Registers, Unwinder};
pub use demangle::{Sieve, Style, demangle, spellings};
pub use dwarf::find::{Fetch, fetch_by, fetch_no_more, symbol_file};
pub use dwarf::{
    Debug, DebugError, LineError, LineRange, LineTable, Shown, Variable, VariableError, Word,
};
pub use functions::{
    Fragment, Function, Nature, SymbolError, Symbols, functions, linkage_tables, symbols,
    symbols_of, symbols_with,
};
pub use imports::{build_id, imports};
pub use keys::{Branch, Key, KeyPlace, Keys, KeysError, key_at, keys};
pub use signals::interrupted;
pub use unwind::{Cfa, Frames, Row};
pub use usdt::{Argument, Tracepoint, Usdt, usdt};
