//! Events by name.

use std::ffi::OsString;

use clap::{Args, ValueHint};

use super::{Screen, process};

/// Which events are recorded.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recording")]
pub struct EventPatterns {
    /// Record these events: tracepoints and other USDT probes, as GROUP:NAME, 'GROUP:*' or '*'
    ///
    /// Of the program and all its libraries; * stands for any text, ? for any character, […] for one of these.
    /// Tracepoints that the program has switched off (static keys) are switched on for as long as they are recorded.
    /// `hodo list-events FILE` lists what there is. Can be given more than once.
    #[arg(long = "event", value_name = "PATTERN")]
    pub events: Vec<String>,
}

/// `list-events`.
#[derive(Debug, Args)]
pub struct ListEventsArgs {
    /// Of all files of this process, and whether each is switched on there
    #[arg(short, long, value_name = "PID", value_parser = process)]
    pub pid: Option<i32>,
    /// Only these: GROUP:NAME, where * stands for any text
    #[arg(short, long = "event", value_name = "PATTERN")]
    pub events: Vec<String>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub screen: Screen,
    /// The program or library, unless there is a process; then patterns as those of --event
    #[arg(
        required_unless_present = "pid",
        value_name = "FILE",
        help_heading = "Arguments",
        value_hint = ValueHint::FilePath
    )]
    pub words: Vec<OsString>,
}
