//! Options that change a running recording.

use clap::{Args, ValueEnum};

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SwitchArg {
    /// Record calls
    On,
    /// Record no calls until switched on
    Off,
}

/// Options that change a running recording.
#[derive(Debug, Args)]
#[command(next_help_heading = "Recording")]
pub struct Control {
    /// Start with tracing on or off; with -p, switch it
    ///
    /// `hodo live -p PID --trace on` switches on tracing in the running recording of process PID.
    #[arg(long, value_name = "STATE")]
    pub trace: Option<SwitchArg>,
    /// `--trace off`, as uftrace calls it.
    #[arg(long, hide = true, conflicts_with = "trace")]
    pub disable: bool,
    /// Reserve more room for changing the recording while it runs
    ///
    /// Every recording can be changed. If hodo already records process PID, `hodo live -p PID` with -F, -N, -P, -U, -D,
    /// -t, --trace or --clear changes that recording. The new values of an option replace its old ones.
    #[arg(short = 'g', long)]
    pub agent: bool,
    /// First remove all filters from the recording of process PID
    #[arg(long, requires = "pid")]
    pub clear: bool,
}
