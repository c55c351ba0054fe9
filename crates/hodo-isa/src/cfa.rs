//! Follows a function's frame: what is the same for all instruction sets.

/// Registers of the caller that a function may keep on its stack: as many as the instruction set has that most.
pub const SAVED: usize = 13;

/// How to find the frame from one place in the code to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Code of stubs, of which frame tables tell by themselves.
    Stub,
    /// Code of stubs, where tables have to say how much of the stack they use.
    Lowered {
        /// This many bytes.
        bytes: u16,
        /// Whether the return address is in the shadow; else it is in its register.
        shadow: bool,
    },
    /// CFA = register (by column) + offset; the words below it that hold registers.
    Frame {
        /// Column of the register.
        base: u8,
        /// CFA minus its value.
        offset: i32,
        /// As many words below the CFA are the registers that the instruction set's `CALLEE_SAVED` lists; 0: in their
        /// registers.
        saved: [u16; SAVED],
    },
    /// It cannot be told.
    Unknown,
}

/// A rule that holds from an offset in the code on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The offset.
    pub at: u32,
    /// The rule.
    pub rule: Rule,
}
