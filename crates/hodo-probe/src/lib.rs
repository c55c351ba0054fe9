//! Probes on any instruction of a program: the language in which users define them.
//!
//! ```
//! let probe = hodo_probe::parse("p:io/open /bin/cat:open_file+4 path=+0(%di):string if pid > 1 count")?;
//! assert_eq!((probe.group.as_str(), probe.name.as_str()), ("io", "open"));
//! assert_eq!(probe.args[0].name, "path");
//! assert_eq!(probe.actions, [hodo_probe::Action::Count]);
//!
//! let error = hodo_probe::parse("p:x /bin/bash:main %rex").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "in probe definition:\n  p:x /bin/bash:main %rex\n                     ^ there is no register rex; did you mean rax?"
//! );
//! # Ok::<(), hodo_probe::ParseError>(())
//! ```
//!
//! Nothing here knows a program: whether a symbol, a line or a variable exists is for those to find out who have the
//! file.
#![no_std]
#![deny(unsafe_code)]

#[macro_use]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod definition;
#[cfg(any(target_arch = "x86_64", target_arch = "riscv64"))]
#[allow(unsafe_code)]
pub mod engine;
pub mod registers;

pub use definition::{
    Action, BinaryOp, Bucket, Container, Definition, Expr, FetchArg, HistKey, HistSort, Histogram,
    Kind, Offset, ParseError, Place, ProbeName, Scalar, SortBy, Source, Symbol, Type, UnaryOp,
    parse,
};
pub use registers::Register;

// The examples of the page are tested with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/probe-library.md")]
struct ProbeLibraryPage;
