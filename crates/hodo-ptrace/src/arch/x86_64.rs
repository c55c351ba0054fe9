//! x86-64, with Linux's conventions for it.

mod regs;
mod run_ahead;
mod sigframe;
mod step;
mod syscall;
mod thread_slot;
mod vectors;

pub use regs::*;
pub use run_ahead::{INTERPRETS, run_ahead};
pub use sigframe::{frame, is_frame, size_of_frame};
pub use step::*;
pub use syscall::*;
pub use thread_slot::*;
pub use vectors::Vectors;
