//! What programs do with memory: clients of the instrumentation engine.
//!
//! * [`cache`]: a model of caches.
//! * [`drmemtrace`]: DynamoRIO's traces.
//! * [`places`]: functions and source lines of instructions.
//! * [`stat`]: how many instructions and accesses.
//! * [`trace`]: all accesses, in files.
//! * [`view`]: all accesses, as text.
#![forbid(unsafe_code)]

pub mod cache;
pub mod drmemtrace;
pub mod places;
pub mod stat;
pub mod trace;
pub mod view;
