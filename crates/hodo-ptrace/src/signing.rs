//! Signatures in return addresses.

/// How a function signs its return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signing {
    /// The stack pointer at its entry, for which it signs.
    pub modifier: u64,
    /// By the second of the processor's two keys.
    pub second: bool,
    /// Whether the return address is one that the function has stored: only signed ones are.
    pub stored: bool,
}
