//! The trace on disk: its format, how it is written, and how it is read back.

pub mod format;
