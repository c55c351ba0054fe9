//! What belongs to a target and not to us: its addresses, and the numbers of its files. Neither can be taken for an
//! address or a file of this process, nor the other way round.

use std::fmt;

/// An address in the target. It means nothing in our own memory: [`Memory`](crate::Memory) reads and writes there, and
/// [`Syscalls`](crate::Syscalls) has the target map it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TargetAddr(pub u64);

impl TargetAddr {
    /// The address this many bytes further on.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl fmt::LowerHex for TargetAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// An open file of the target, by its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetFd(pub u64);

/// What the target's `mmap` has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapped(pub(crate) i64);

impl Mapped {
    /// Where the memory is, or the kernel's error.
    ///
    /// # Errors
    /// The kernel's.
    pub fn addr(self) -> std::io::Result<TargetAddr> {
        match self.0 {
            0.. => Ok(TargetAddr(self.0.cast_unsigned())),
            error => Err(std::io::Error::from_raw_os_error(-error as i32)),
        }
    }

    /// Whether the memory is where it was wanted.
    #[must_use]
    pub fn is_at(self, wanted: TargetAddr) -> bool {
        self.0.cast_unsigned() == wanted.0
    }
}

impl fmt::Display for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
