//! What hooks for entries and returns are given.

/// A call whose return is traced.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// The address of the call of `mcount` or `__fentry__` in the function.
    pub func: usize,
    /// The address to which the function returns.
    pub parent: usize,
    /// How many traced calls were open when it was entered.
    pub depth: usize,
    /// For the hooks: 0 at first; what the hook for the entry stores here, the hook for the return finds.
    pub data: usize,
}
