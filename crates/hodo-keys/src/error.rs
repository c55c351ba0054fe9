//! Why keys could not be switched.

use core::fmt;

use crate::text::Errno;

/// Why a key could not be switched. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Code cannot be written: the `errno`. On Linux, this writes to `/proc/self/mem` and calls `membarrier`.
    Text(Errno),
    /// The bytes at a branch are not a branch: a debugger's breakpoint, or somebody else's patch.
    Foreign {
        /// The branch.
        address: usize,
        /// The first byte there.
        found: u8,
    },
    /// [`Key::dec`](crate::Key::dec) of a key without users.
    NoUser {
        /// The key's name.
        key: &'static str,
    },
    /// More users than can be counted.
    TooManyUsers {
        /// The key's name.
        key: &'static str,
    },
    /// A signal handler interrupted this thread while it was switching a key.
    Busy,
    /// The pattern cannot match the name of any tracepoint.
    Pattern,
    /// The maximum number of functions is already registered for tracepoints.
    TooManyFunctions,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(errno) => write!(
                f,
                "the code of static branches cannot be changed (error {errno}): /proc/self/mem must be writable, and the kernel have membarrier (Linux 4.16)"
            ),
            Self::Foreign { address, found } => write!(
                f,
                "the static branch at {address:#x} was changed by something else (it begins with byte {found:#04x}): a breakpoint, or another tool's patch"
            ),
            Self::NoUser { key } => write!(f, "static key {key} has no user: dec without inc"),
            Self::TooManyUsers { key } => write!(f, "static key {key} has too many users"),
            Self::Busy => write!(
                f,
                "a static key was being switched when this signal handler began"
            ),
            Self::Pattern => write!(
                f,
                "a pattern of tracepoints is `group:name`, with `*` for any characters and `?` for one, of at most 192 bytes"
            ),
            Self::TooManyFunctions => write!(
                f,
                "64 functions are registered for tracepoints, which is the limit"
            ),
        }
    }
}

impl core::error::Error for Error {}
