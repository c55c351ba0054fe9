//! Faults, as whoever takes them calls them.

/// What a fault is. The engine passes the numbers on: they are Linux's signals and codes, or a kernel's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cause {
    /// The signal, or the number of the exception.
    pub number: i32,
    /// Its code.
    pub code: i32,
    /// The address that was used.
    pub addr: u64,
}
