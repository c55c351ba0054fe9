//! Where code of ours is, and what it stands for.

/// Where a stub is: runtime addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stub {
    /// Its first byte.
    pub start: u64,
    /// The instructions that it has displaced.
    pub body: u64,
    /// What stands behind them.
    pub slow: u64,
    /// Where they stood; 0: it has none.
    pub original: u64,
    /// Where all is still as it was there.
    pub entry: u64,
}

/// Where a displaced instruction is in an island: runtime addresses. A thread may be moved from the one to the other as long as
/// it has executed nothing of either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Where it stood.
    pub original: u64,
    /// Where its probes begin; without one, the copy itself.
    pub before: u64,
    /// The copy.
    pub copy: u64,
    /// It stands behind a system call that a probe makes in place of the program: only a thread in that call may come here.
    pub call: bool,
}
