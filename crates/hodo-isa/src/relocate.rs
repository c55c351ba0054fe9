//! Moved code: what is the same for several instruction sets.

use core::fmt;

/// Where one instruction went. Offsets are from the starts of the original and of the moved code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Offset in the original.
    pub old: usize,
    /// Offset in the moved code.
    pub new: usize,
}

/// What moved calls return to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// The original code after the call: the callee, unwinders and the link register see what they would have seen.
    /// Such a call must be the last instruction.
    Original,
    /// The moved code after the call. The link register is not what it was.
    Moved,
}

/// Why code cannot be moved, where calls leave the return address in a register. Instruction sets have reasons of
/// their own for an instruction that must stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelocateError<Why> {
    /// An instruction that must stay.
    Immovable {
        /// Offset of the instruction.
        offset: usize,
        /// Why.
        why: Why,
    },
    /// A call that is not the last instruction, and returns to the original code.
    CallInside {
        /// Offset of the instruction.
        offset: usize,
    },
    /// A register is needed, and none is dead.
    NoRegister {
        /// Offset of the instruction.
        offset: usize,
    },
    /// What the instruction refers to is too far from the new address.
    OutOfRange {
        /// Offset of the instruction.
        offset: usize,
    },
    /// A branch into the middle of one of the moved instructions.
    TargetInside {
        /// Offset of the instruction.
        offset: usize,
    },
}

impl<Why: fmt::Display> fmt::Display for RelocateError<Why> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, offset) = match self {
            Self::Immovable { offset, why } => return write!(f, "{why}, at offset {offset}"),
            Self::CallInside { offset } => ("a call that is not the last instruction", offset),
            Self::NoRegister { offset } => ("no register is free for a long jump", offset),
            Self::OutOfRange { offset } => ("a reference out of range", offset),
            Self::TargetInside { offset } => ("a branch into an instruction's middle", offset),
        };
        write!(f, "{what} at offset {offset}")
    }
}

impl<Why: fmt::Debug + fmt::Display> core::error::Error for RelocateError<Why> {}
