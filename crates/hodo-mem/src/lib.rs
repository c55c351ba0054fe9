//! What programs do with memory: clients of the instrumentation engine.
//!
//! * [`stat`]: how many instructions and accesses.
#![forbid(unsafe_code)]

pub mod stat;
