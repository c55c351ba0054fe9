//! What an instruction of any set does with control and with registers. Each set fills these.

/// What an instruction does with control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Goes on to the next.
    Next,
    /// A conditional branch to an address.
    Branch(u64),
    /// A jump to an address.
    Jump(u64),
    /// A call of an address.
    Call(u64),
    /// A jump through a register or memory.
    IndirectJump,
    /// A call through a register or memory.
    IndirectCall,
    /// A return.
    Return {
        /// What else it does.
        how: How,
    },
    /// An instruction that only faults.
    Fault,
    /// Not an instruction.
    Invalid,
}

/// How a function returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// As calls expect it.
    Plain,
    /// It also drops arguments from the stack.
    Drops,
    /// Through a register other than the usual link register.
    OtherLink,
}

impl Flow {
    /// A return through this register, on an instruction set whose calls put the return address in `usual`.
    #[must_use]
    #[inline]
    pub const fn returning(by: u8, usual: u8) -> Self {
        let how = if by == usual {
            How::Plain
        } else {
            How::OtherLink
        };
        Self::Return { how }
    }

    /// Whether control never goes on to the next instruction.
    #[must_use]
    pub fn is_end(self) -> bool {
        matches!(
            self,
            Self::Jump(_) | Self::IndirectJump | Self::Return { .. } | Self::Fault
        )
    }
}

/// The registers and flags that an instruction uses. `Set` has a bit for each that the instruction set follows: general
/// registers by their numbers, and arithmetic flags where there are any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effects<Set> {
    /// It may read these.
    pub reads: Set,
    /// It writes these in any case.
    pub writes: Set,
    /// It may write these: all of `writes`, and more.
    pub changes: Set,
}

impl<Set: Copy> Effects<Set> {
    /// Reads some registers, and writes others in any case.
    #[must_use]
    #[inline]
    pub const fn of(reads: Set, writes: Set) -> Self {
        Self {
            reads,
            writes,
            changes: writes,
        }
    }
}

/// Registers besides the general ones. The values are in this order: more contains less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vectors {
    /// None.
    None = 0,
    /// Those that ordinary floating-point code uses, with its control register. x86-64: the lower 128 bits of vector
    /// registers 0 to 15. RISC-V: the floating-point registers. AArch64: the vector registers, of which it clears what
    /// is above the lower 128 bits.
    Part = 1,
    /// All of them, in full.
    All = 2,
}

/// What an instruction, or several that make one jump, may do to registers besides the general ones.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// What it may change.
    pub vectors: Vectors,
    /// Where it leads.
    pub flow: Flow,
    /// The memory word that it uses.
    pub word: Option<u64>,
    /// The address after it.
    pub end: u64,
}
