//! RISC-V with 64 bits, with Linux's conventions for it.

pub(super) mod numbers;
mod regs;
mod sigframe;
mod step;
mod thread_slot;
mod vectors;

pub use super::linked::*;
pub use numbers::untagged;
pub use regs::*;
pub use sigframe::{frame, is_frame, size_of_frame};
pub use step::*;
pub use thread_slot::*;
pub use vectors::{Kept, Vectors};
