//! Events by name.

use std::ffi::OsString;

use clap::{ArgAction, Args, ValueHint};

use super::{Screen, process};

/// Which events to record.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recording")]
pub struct EventPatterns {
    /// Record these events: tracepoints, other USDT probes and system calls, as GROUP:NAME, 'GROUP:*' or '*'
    ///
    /// Events of the program and all its libraries. * stands for any text, ? for any character, […] for one of these
    /// characters. Tracepoints that the program has switched off (static keys) are switched on during the recording.
    /// `hodo list-events FILE` lists the events of a file. System calls have the group syscalls, as in
    /// syscalls:sys_enter_openat and 'syscalls:sys_exit_*'; * alone does not mean them. Can be repeated.
    #[arg(long = "event", value_name = "PATTERN")]
    pub events: Vec<String>,
    /// Events and probes of these threads only, such as 1234,1235
    #[arg(long = "only-tid", value_name = "TID", value_delimiter = ',', value_parser = process)]
    pub threads: Vec<i32>,
}

/// `list-events`.
#[derive(Debug, Args)]
pub struct ListEventsArgs {
    /// List the events of all files of this process, and whether each is switched on
    #[arg(short, long, value_name = "PID", value_parser = process, action = ArgAction::Append)]
    pub pid: Option<i32>,
    /// Only events that match: GROUP:NAME, where * stands for any text
    #[arg(short, long = "event", value_name = "PATTERN")]
    pub events: Vec<String>,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub screen: Screen,
    /// The program or library (without -p), then patterns as for --event; 'syscalls:*' lists system calls
    #[arg(
        required_unless_present = "pid",
        value_name = "FILE",
        help_heading = "Arguments",
        value_hint = ValueHint::FilePath
    )]
    pub words: Vec<OsString>,
}
