//! What is observed.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// What is observed.
#[derive(Debug, Clone, Copy)]
pub enum Target<'t> {
    /// A program that is executed.
    Program {
        /// The program.
        path: &'t Path,
        /// Its command line.
        command: &'t [OsString],
        /// If only part of the run is observed: which. Outside of it, nothing of the engine is there.
        period: Option<Period>,
        /// Only what is done between the program's calls of `hodo_mem_start` and `hodo_mem_stop` is observed. There is
        /// no period then.
        marked: bool,
        /// Whether its child processes are observed, too. A child that has no memory of its own is, in any case, until
        /// it executes a program.
        follows: bool,
    },
    /// A process that runs already.
    Process {
        /// Its number.
        pid: i32,
        /// When it is left. Without it, by a signal that ends hodo.
        length: Option<Amount>,
        /// Observe again and again: so much after a part has begun, the next one begins. Only a signal ends that.
        every: Option<Amount>,
        /// Only what is done between the program's calls of `hodo_mem_start` and `hodo_mem_stop` is observed.
        marked: bool,
        /// Whether processes that it makes are observed, too.
        follows: bool,
    },
}

/// An amount of what a program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// What it does in this time.
    Time(Duration),
    /// About this number of instructions of all its threads together, those of observed child processes too. They are
    /// counted exactly, but the counters are looked at only from time to time: there may be some milliseconds of more.
    Instructions(u64),
}

/// Part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// What the program does before it. Nothing of the engine is there, unless instructions are counted.
    pub from: Option<Amount>,
    /// How long it is. Without it, to the end.
    pub length: Option<Amount>,
    /// There are other parts of that length: so much after one has begun, the next one begins. Between them, nothing of
    /// the engine is there, unless instructions are counted.
    pub every: Option<Amount>,
}

impl<'t> Target<'t> {
    /// Whether it may be observed again and again.
    pub(crate) fn repeats(&self) -> bool {
        match *self {
            Self::Program { period, marked, .. } => {
                marked || period.is_some_and(|period| period.every.is_some())
            }
            Self::Process { every, marked, .. } => marked || every.is_some(),
        }
    }

    /// A program from its first instruction to its last, and its child processes.
    #[must_use]
    pub fn program(path: &'t Path, command: &'t [OsString]) -> Self {
        Self::Program {
            path,
            command,
            period: None,
            marked: false,
            follows: true,
        }
    }
}
