//! The language of probe definitions. [`parse`] converts a text to a [`Definition`], and `Display` a [`Definition`] to
//! a text.
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
//! This crate knows no programs. Whether a symbol, a line or a variable exists is checked by those who have the file.
//!
//! ```text
//! DEF      := ("p"|"r") [":" [GROUP "/"] [NAME]] SPACE PATH ":" PLACE ["post"] {FETCHARG} ["if" EXPR] {ACTION}
//!           | PATH ":" PLACE …                                  an entry probe, as with "p"
//!           | "syscalls:" ("sys_enter_" | "sys_exit_") CALL …  a system call; its arguments are variables
//! PATH     := characters without space and ":"; these with "\" before them; or the whole in '…' or "…"
//! PLACE    := SYMBOL ["+" BYTES | "+*"] ["%return"]             "+*": every instruction
//!           | NUMBER ["%return"]                                offset in the file
//!           | FILE ":" LINE
//!           | "%" PROVIDER ":" NAME                               a USDT probe; its arguments are $arg1, $arg2, …,
//!                                                                 also without $, or by name
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
//! With `post`, everything happens after the instruction at the place has been executed, with the values that there are
//! then. Otherwise, it happens before.
//!
//! A word that can be an action is one, and so is `post` after the place. To fetch a variable named `count`, write
//! `count=count`.

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
pub use parse::{parse, parse_for};
pub use registers::Register;

/// What stands in place of a file in the definitions of system calls.
pub const SYSCALLS: &str = "syscalls";
/// The maximum size of a definition in bytes.
pub const MAX_TEXT: usize = 16384;
/// The maximum number of fetch arguments of a probe. It is the kernel's limit.
pub const MAX_ARGS: usize = 128;
/// The maximum number of elements of an array.
pub const MAX_ELEMENTS: u16 = 64;
/// The maximum nesting of parentheses, dereferences and unary operators.
pub const MAX_NESTING: usize = 64;
/// The maximum number of operators between the root of an expression and a leaf.
pub const MAX_HEIGHT: usize = 256;
/// The last `$arg`.
pub const MAX_ARGUMENT: u16 = 128;
/// The last `$stack` entry.
pub const MAX_STACK: u16 = 2047;
/// The maximum number of keys of a histogram.
pub const MAX_KEYS: usize = 3;
/// The default number of entries of a histogram.
pub const HIST_SIZE: u32 = 2048;
/// The maximum number of entries of a histogram.
pub const MAX_HIST_SIZE: u32 = 1 << 20;
/// The default size of a snapshot in bytes.
pub const SNAPSHOT_SIZE: u32 = 256;
/// The maximum size of a snapshot in bytes.
pub const MAX_SNAPSHOT_SIZE: u32 = 1 << 16;
