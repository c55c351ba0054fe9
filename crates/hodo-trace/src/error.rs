//! What can be wrong with a trace directory.

use std::path::PathBuf;

/// Why a trace cannot be read at all. Damage in the middle is not an error; see [`crate::Trace::damage`].
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// There is no such directory.
    #[error(
        "there is no trace at {0}: record one with `hodo record PROGRAM`, or name another with --data"
    )]
    Missing(PathBuf),
    /// The directory is not a trace.
    #[error("{0} is not a trace directory: it has no info.json")]
    NotATrace(PathBuf),
    /// A file of the trace cannot be read.
    #[error("cannot read {path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A file of the trace is not what it should be.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The trace was written in another format.
    #[error("{path} has format version {found}; this hodo reads version {known}")]
    Version {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u64,
        /// The version that can be read.
        known: u32,
    },
}
