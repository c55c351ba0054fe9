//! What a call calls, as far as its bytes tell.

/// What a call in a program calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Called {
    /// The code at this address.
    This(u64),
    /// An address that is in a register or in memory.
    Something,
    /// There is no call.
    Nothing,
}
