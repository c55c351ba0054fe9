//! How to find a function's frame: what is the same for all instruction sets.

/// The number of callee-saved registers of the instruction set that has the most of them.
pub const SAVED: usize = 13;

/// How to find the frame at one place in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Code of stubs, which frame tables describe separately.
    Stub,
    /// Code of stubs for which tables have to say how much of the stack it uses.
    Lowered {
        /// This many bytes.
        bytes: u16,
        /// Whether the return address is in the shadow; otherwise it is in its register.
        shadow: bool,
    },
    /// CFA = register (by column) + offset; and the words below the CFA that hold saved registers.
    Frame {
        /// Column of the register.
        base: u8,
        /// CFA minus its value.
        offset: i32,
        /// Where the registers that the instruction set's `CALLEE_SAVED` lists are saved: this many words below the
        /// CFA; 0 if they are still in their registers.
        saved: [u16; SAVED],
    },
    /// Not known.
    Unknown,
}

/// A rule that holds from an offset in the code onward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The offset.
    pub at: u32,
    /// The rule.
    pub rule: Rule,
}
