//! What is known about a run.

use std::io;

use hodo_follow::Exit;

/// What is known about a run.
#[derive(Debug)]
pub struct Ran {
    /// How the program ended. `None`: it runs on.
    pub end: Option<Exit>,
    /// Why the program could not be executed, if so.
    pub failure: Option<io::Error>,
    /// Whether an error has ended the observation before the program's end. It was reported.
    pub broken: bool,
}
