//! What surrounds system calls, for all instruction sets.

/// What an instruction does to the register with the number of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// Loads this number.
    Loaded(u64),
    /// Nothing.
    Kept,
    /// Something else.
    Changed,
}
