//! Code that was moved, in all instruction sets. Why code cannot be moved is a matter of each.

/// Where one instruction went. Offsets are from the starts of the original and of the moved code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Offset in the original.
    pub old: usize,
    /// Offset in the moved code.
    pub new: usize,
}
