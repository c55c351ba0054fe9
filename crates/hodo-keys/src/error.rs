//! Why keys could not be switched.

use core::fmt;

use crate::text::Errno;

/// Why a key could not be switched. Nothing is changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Code cannot be written: a number of `errno.h`. On Linux `/proc/self/mem` is written, and `membarrier` called.
    Text(Errno),
    /// At a branch is what no branch can be: a breakpoint of a debugger, or somebody else's patch.
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
    /// A signal handler has interrupted this thread while it switched a key.
    Busy,
    /// What was given as a pattern cannot match the name of a tracepoint.
    Pattern,
    /// As many functions are registered for tracepoints as there can be.
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
