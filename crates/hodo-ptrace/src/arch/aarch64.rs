//! AArch64, with Linux's conventions for it.

mod home;
pub(super) mod numbers;
mod regs;
mod sigframe;
mod signature;
mod step;
mod thread_slot;
mod vectors;

pub use super::linked::*;
pub use numbers::untagged;
pub use regs::*;
pub use sigframe::{frame, is_frame, size_of_frame};
pub use signature::unsigned;
pub use step::*;
pub use thread_slot::*;
pub use vectors::{Kept, Vectors};
