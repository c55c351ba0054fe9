//! The trace on disk: its layout, its reader, and the calls that its records describe.
//!
//! `docs/trace-format.md` describes the directory. [`Trace::open`] reads everything but the records. [`Trace::records`]
//! streams the records of one task, and [`Calls`] turns them into calls. Memory use does not grow with the length of a
//! trace.
#![forbid(unsafe_code)]

pub mod calls;
mod error;
pub mod follow;
pub mod format;
pub mod meta;
mod model;
pub mod records;
pub mod syscalls;
#[doc(hidden)]
pub mod testing;
mod trace;

pub use calls::{CallStep, Calls, Entered, Frame, Left, TailCalls, Traits};
pub use error::TraceError;
pub use meta::Info;
pub use model::{Chunk, Function, FunctionKind, Module, Task};
pub use records::{Record, RecordKind, Records, bytes_read, told_lost};
pub use trace::{Scale, Times, Trace};
