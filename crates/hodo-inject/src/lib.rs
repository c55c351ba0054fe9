//! Changes an address space, and takes the changes back: what is mapped there for a recording, what is written over the
//! program's code, and how threads get out of it.
//!
//! * [`install`]: what is done at the moments at which code appears or changes: exec, dlopen, attach, a change of
//!   settings.
//! * [`space`]: what is known of one address space.
//! * [`site_writer`]: writing over code, and the original bytes.
//! * [`leave`], [`adopt`]: the way back, also for a process that a killed hodo has left behind.
//! * [`recorder`]: what this asks of a recording. It knows none.
#![forbid(unsafe_code)]

pub mod adopt;
mod arch;
pub mod context;
pub mod copied;
pub mod frames;
mod hooks;
pub mod install;
pub mod leave;
pub mod ledger;
mod limits;
mod linker;
pub mod recorder;
pub mod site_writer;
pub mod space;
pub mod step_out;
mod stubs;
mod trampolines;
pub mod trap_handler;
mod unsupported;
pub mod untimed;
