//! Moved code: what is the same for all instruction sets. Each has its own reasons why code cannot be moved.

/// Where one instruction went. Offsets are from the starts of the original and of the moved code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Offset in the original.
    pub old: usize,
    /// Offset in the moved code.
    pub new: usize,
}
