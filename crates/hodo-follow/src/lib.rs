//! Follows a program: its threads, its children, the programs that they execute.
//!
//! The kernel stops each new thread before its first instruction, and each thread at signals, at executions of programs
//! and at its end. [`next`] waits for such a stop, and [`deal`] decides what it is. What has to be done then differs: a
//! recording changes code that runs where it is, an engine has it run from a cache. Each of them says so by a
//! [`Policy`].
//!
//! * `exit`: how a program ends; `made`: how a thread was made.
//! * `tasks`: the threads that are known, those that have stopped before their makers, and those that have ended.
//! * `restarts`: system calls that ignored signals break off.
//! * `program`: the program that was started, what it leaves behind, and what ends the work.
//! * `first`: the first process of a PID namespace.
//! * `follow`: waits for stops, and deals with them.
#![forbid(unsafe_code)]

#[macro_use(warn_user)]
extern crate hodo_ptrace;

mod exit;
mod first;
mod follow;
mod made;
mod program;
mod restarts;
mod tasks;

pub use exit::Exit;
pub use first::{CAUSED, ends_untraced};
pub use follow::{Policy, deal, next};
pub use made::Made;
pub use program::Program;
pub use restarts::Restarts;
pub use tasks::{Task, Tasks};
