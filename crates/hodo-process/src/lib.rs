//! Launches programs, maps the agent into them, follows their threads and children.

mod options;

pub use options::{Clock, Exit, Match, RecordOptions};

/// Runs a program and records its calls. Returns how it ended.
///
/// # Errors
/// If the program or the trace directory is not to be had; nothing has run then.
pub fn record(options: &RecordOptions) -> anyhow::Result<Exit> {
    anyhow::bail!("cannot run {:?}", options.command)
}
