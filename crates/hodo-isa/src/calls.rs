//! What a call calls, as far as its bytes show.

/// What a call in a program calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Called {
    /// The code at this address.
    This(u64),
    /// An address in a register or in memory.
    Something,
    /// It is not a call.
    Nothing,
}
