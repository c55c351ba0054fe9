//! What instructions are: read code, follow it, move it. Each instruction set has a module of its own, which knows nothing of
//! processes; [`code`] reads the code of any of them, as planners do, who learn from a file which one it is.
//!
//! The modules of the sets have the same names: `scan` finds branches and addresses in code, `steps` what a planner of probes has to
//! know of each instruction, `entry` tells what a function does with its return address, `origin` where jumps through registers lead,
//! `text` writes instructions for people, `relocate` moves them, `simulate` does
//! on saved registers what some of them do, `track` follows the frame.
#![no_std]
#![forbid(unsafe_code)]
#![allow(
    clippy::too_many_lines,
    clippy::too_many_arguments,
    reason = "this crate's long functions are still to be taken apart"
)]

#[macro_use]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod code;
pub mod relocate;
pub mod riscv64;
pub mod track;
pub mod x86_64;

/// The instruction set that this is built for, which is that of the processes that it can trace.
#[cfg(target_arch = "riscv64")]
pub use riscv64 as native;
#[cfg(target_arch = "x86_64")]
pub use x86_64 as native;

pub use code::{InstructionSet, instruction_set};

/// The one of the processes that this is built for.
#[cfg(target_arch = "riscv64")]
pub const NATIVE: &dyn InstructionSet = &riscv64::Riscv64;
/// The one of the processes that this is built for.
#[cfg(target_arch = "x86_64")]
pub const NATIVE: &dyn InstructionSet = &x86_64::X86_64;

/// How a long jump from a site gets the register that it may need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Via {
    /// The long jump of this instruction set needs none.
    #[default]
    Nothing,
    /// A register whose value is of no use to anybody at the site, by its number.
    Free(u8),
    /// A register, by its number, that the patch puts on the stack before it jumps. What it leads to takes it from there.
    Kept(u8),
}

impl Via {
    /// Bytes of the instructions that take a kept register from the stack.
    pub const TAKE: u64 = riscv64::KEEP;

    /// Bytes of a place that takes a kept register back and goes on by a short jump.
    pub const PAD: u64 = Self::TAKE + 4;

    /// Bytes of the long jump that takes its register so.
    #[must_use]
    pub const fn jump_len(self) -> u64 {
        match self {
            Self::Nothing => x86_64::JUMP,
            Self::Free(_) => riscv64::JUMP,
            Self::Kept(_) => riscv64::JUMP + riscv64::KEEP,
        }
    }

    /// The same for a jump after another one, which has put on the stack what is kept.
    #[must_use]
    pub const fn jumping(self) -> Self {
        match self {
            Self::Kept(register) => Self::Free(register),
            other => other,
        }
    }

    /// Bytes of the jump to anywhere that takes its register so and finds in memory where it leads to; nothing if none can be made at a
    /// site.
    #[must_use]
    pub const fn far_len(self) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Free(_) => Some(riscv64::FAR),
            Self::Kept(_) => Some(riscv64::FAR + riscv64::KEEP),
        }
    }
}
