//! What programs do with memory: clients of the instrumentation engine.
//!
//! * [`stat`]: how many instructions and accesses.
//! * [`trace`]: all accesses, in files.
//! * [`view`]: all accesses, as text.
#![forbid(unsafe_code)]

pub mod stat;
pub mod trace;
pub mod view;
