//! Moved code: what several instruction sets share.

use core::fmt;

/// Where one instruction was moved. Offsets are from the starts of the original and of the moved code.
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
    /// The original code after the call, so the callee and unwinders see the original return address in the link
    /// register. Such a call must be the last instruction.
    Original,
    /// The moved code after the call. The link register then differs from the original.
    Moved,
}

/// Why code cannot be moved, on instruction sets whose calls put the return address in a register. `Why` is the
/// instruction set's own reason for an instruction that must stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelocateError<Why> {
    /// An instruction that must stay.
    Immovable {
        /// Offset of the instruction.
        offset: usize,
        /// Why.
        why: Why,
    },
    /// A call that returns to the original code but is not the last instruction.
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
