//! What is known about a run.

use std::io;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With this exit status.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// By this signal; the kernel has also written a core file.
    Core(i32),
}

/// What is known about a run.
#[derive(Debug)]
pub struct Ran {
    /// How the program ended. `None`: it runs on.
    pub end: Option<End>,
    /// Why the program could not be executed, if so.
    pub failure: Option<io::Error>,
}
