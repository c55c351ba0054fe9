//! What can be changed while a recording runs.

use clap::{Args, ValueEnum};

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SwitchArg {
    /// Calls are recorded
    On,
    /// No calls are recorded, until somebody switches it on
    Off,
}

/// What can be changed while a recording runs, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recording")]
pub struct Control {
    /// Begin with tracing on or off, or switch it
    ///
    /// `hodo live -p PID --trace on` switches it on in the recording of process PID.
    #[arg(long, value_name = "STATE")]
    pub trace: Option<SwitchArg>,
    /// `--trace off`, as uftrace calls it.
    #[arg(long, hide = true, conflicts_with = "trace")]
    pub disable: bool,
    /// Keep much room for changes of the recording while it runs
    ///
    /// Every recording can be changed: where hodo records process PID already, `hodo live -p PID` with -F, -N, -P, -U,
    /// -D,
    /// -t, --trace or --clear changes that recording. What is given replaces what was given before of the same option.
    #[arg(short = 'g', long)]
    pub agent: bool,
    /// Change the recording of process PID to one without filters first
    #[arg(long, requires = "pid")]
    pub clear: bool,
}
