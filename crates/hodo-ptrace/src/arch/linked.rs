//! What instruction sets share whose calls put the return address in a register, and on which Linux has a stopped
//! thread in front of a system call that will be made again. Nothing here names a register: their numbers are those of
//! `numbers` of each instruction set.

mod handler;
mod regs;
mod run_ahead;
mod syscall;
mod thread_slot;

pub(super) use handler::{is_code, word};
pub use regs::{BREAKPOINT, Regs, is_breakpoint};
pub(super) use regs::{insn, kept_argument};
pub use run_ahead::{INTERPRETS, run_ahead};
pub use syscall::*;
pub use thread_slot::*;
