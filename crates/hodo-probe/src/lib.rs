//! Probes on any instruction of a program: the language in which users define them.
//!
//! Nothing here knows a program: whether a symbol, a line or a variable exists is for those to find out who have the file.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod definition;
pub mod registers;

pub use definition::{
    Action, BinaryOp, Bucket, Container, Definition, Expr, FetchArg, HistKey, HistSort, Histogram,
    Kind, Offset, Place, ProbeName, Scalar, SortBy, Source, Symbol, Type, UnaryOp,
};
pub use registers::Register;
