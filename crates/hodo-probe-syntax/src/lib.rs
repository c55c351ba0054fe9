//! The language of probe definitions: [`parse`] makes a [`Definition`] of a text, `Display` a text of a [`Definition`].
//!
//! ```
//! let probe = hodo_probe_syntax::parse("p:io/open /bin/cat:open_file+4 path=+0(%di):string if pid > 1 count")?;
//! assert_eq!((probe.group.as_str(), probe.name.as_str()), ("io", "open"));
//! assert_eq!(probe.args[0].name, "path");
//! assert_eq!(probe.actions, [hodo_probe_syntax::Action::Count]);
//!
//! let error = hodo_probe_syntax::parse("p:x /bin/bash:main %rex").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "in probe definition:\n  p:x /bin/bash:main %rex\n                     ^ there is no register rex; did you mean rax?"
//! );
//! # Ok::<(), hodo_probe_syntax::ParseError>(())
//! ```
//!
//! Nothing here knows a program: whether a symbol, a line or a variable exists is found out by those who have the file.
//!
//! ```text
//! DEF      := ("p"|"r") [":" [GROUP "/"] [NAME]] SPACE PATH ":" PLACE {FETCHARG} ["if" EXPR] {ACTION}
//!           | PATH ":" PLACE …                                  an entry probe, as with "p"
//! PATH     := characters without space and ":"; these with "\" before them; or the whole in '…' or "…"
//! PLACE    := SYMBOL ["+" BYTES | "+*"] ["%return"]             "+*": every instruction
//!           | NUMBER ["%return"]                                offset in the file
//!           | FILE ":" LINE
//!           | "%" PROVIDER ":" NAME                               a USDT probe; its arguments are arg1, arg2, …
//! SYMBOL   := a name; with "*", "?" or "[…]" in it a pattern; in '…' or "…" a name as it is
//! FETCHARG := [NAME "="] SOURCE [":" TYPE]
//! SOURCE   := "%" REGISTER | "$arg" N | "$retval" | "$stack" | "$stack" N | "$comm" | "@" ADDRESS | "@+" OFFSET
//!           | ("+"|"-") ["u"] BYTES "(" SOURCE ")" | "\" NUMBER | "\" STRING | VARIABLE
//!           | "$params" | "$vars"                               all parameters; all variables that are visible
//! VARIABLE := NAME {"." NAME | "->" NAME | "[" N "]" | "::" NAME}
//! TYPE     := SCALAR ["[" N "]"] | ["s"] "b" WIDTH "@" OFFSET "/" CONTAINER
//! SCALAR   := u8 … u64, s8 … s64, x8 … x64, char, string, ustring, symbol
//! EXPR     := as in C: || && | ^ & == != ~ < <= > >= << >> + - * / % ! ~ - ( ), integers, 'c', "strings",
//!             names of fetch arguments, pid, tid, cpu, comm
//! ACTION   := print | count | stacktrace | snapshot [":" N | "of" N "bytes"] | traceon | traceoff
//!           | enable (":"|SPACE) PROBE | disable (":"|SPACE) PROBE | return (":"|SPACE) NUMBER
//!           | hist:keys=KEY,…[:vals=NAME,…][:sort=NAME[.descending],…][:size=N]
//! ```
//!
//! A word that could be an action is one: the variable `count` is fetched by `count=count`.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod action;
mod error;
mod expr;
mod fetch;
mod lexer;
mod model;
mod parse;
mod place;
mod print;
pub mod registers;

pub use error::ParseError;
pub use model::{
    Action, BinaryOp, Bucket, Container, Definition, Expr, FetchArg, HistKey, HistSort, Histogram,
    Location, Offset, ProbeKind, ProbeName, Scalar, SortBy, Source, Symbol, Type, UnaryOp,
};
pub use parse::parse;
pub use registers::Register;

/// Bytes of a definition, at most.
pub const MAX_TEXT: usize = 16384;
/// Fetch arguments of a probe, at most: as many as the kernel has.
pub const MAX_ARGS: usize = 128;
/// Elements of an array, at most.
pub const MAX_ELEMENTS: u16 = 64;
/// Parentheses, dereferences and unary operators inside each other, at most.
pub const MAX_NESTING: usize = 64;
/// Operators on the way from the root of an expression to a leaf, at most.
pub const MAX_HEIGHT: usize = 256;
/// The last `$arg`.
pub const MAX_ARGUMENT: u16 = 128;
/// The last `$stack` entry.
pub const MAX_STACK: u16 = 2047;
/// Keys of a histogram, at most.
pub const MAX_KEYS: usize = 3;
/// Entries of a histogram whose definition tells no size.
pub const HIST_SIZE: u32 = 2048;
/// Entries of a histogram, at most.
pub const MAX_HIST_SIZE: u32 = 1 << 20;
/// Bytes of a snapshot whose definition tells no size.
pub const SNAPSHOT_SIZE: u32 = 256;
/// Bytes of a snapshot, at most.
pub const MAX_SNAPSHOT_SIZE: u32 = 1 << 16;
