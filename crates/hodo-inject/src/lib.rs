//! Changes an address space, and undoes the changes: what is mapped there for a recording, what is written over the
//! program's code, and how threads leave it.
//!
//! * [`install`]: what is done when code appears or changes: exec, dlopen, attach, a change of settings.
//! * [`space`]: what is known about one address space.
//! * [`site_writer`]: writes over code, and restores the original bytes.
//! * [`leave`], [`adopt`]: the way back, also for a process that a killed hodo has left behind.
//! * [`recorder`]: what this crate asks of a recording. It knows no particular one.
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
pub mod lock;
pub mod recorder;
pub mod site_writer;
pub mod space;
pub mod step_out;
mod stubs;
mod trampolines;
pub mod trap_handler;
mod unsupported;
pub mod untimed;
