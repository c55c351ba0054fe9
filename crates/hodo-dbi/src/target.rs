//! What is observed.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// What is observed.
#[derive(Debug, Clone, Copy)]
pub enum Target<'t> {
    /// A program that is executed, and all its children.
    Program {
        /// The program.
        path: &'t Path,
        /// Its command line.
        command: &'t [OsString],
        /// If only part of the run is observed: which. Outside of it, nothing of the engine is there.
        period: Option<Period>,
    },
    /// A process that runs already, and children that it makes.
    Process {
        /// Its number.
        pid: i32,
        /// When it is left. Without it, by a signal that ends hodo.
        time: Option<Duration>,
    },
}

/// Part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// Since the program was started.
    pub from: Duration,
    /// How long it is. Without it, to the end.
    pub time: Option<Duration>,
}

impl<'t> Target<'t> {
    /// A program from its first instruction to its last.
    #[must_use]
    pub fn program(path: &'t Path, command: &'t [OsString]) -> Self {
        Self::Program {
            path,
            command,
            period: None,
        }
    }
}
