//! The options of `hodo probe` that run nothing, and those of its output.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum EventFormatArg {
    /// Lines as ftrace has them
    #[default]
    #[value(alias = "normal")]
    Text,
    /// JSON: an object in each line
    Json,
    /// Perfetto's trace format, for ui.perfetto.dev; into a file
    Perfetto,
}

/// How and where events and counts are written.
#[derive(Debug, Args)]
pub struct Written {
    /// How events and counts are written
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: EventFormatArg,
    /// Write events and counts to this file, not to stdout
    #[arg(
        short,
        long,
        value_name = "FILE",
        required_if_eq("format", "perfetto"),
        value_hint = ValueHint::FilePath
    )]
    pub output: Option<PathBuf>,
}

/// What could be probed, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Without running the program")]
pub struct Looking {
    /// Show where the probes would be and what would be changed for them, or why they cannot be
    ///
    /// Only one file is named behind the options: the program or library in which to look. It is not needed if the definitions
    /// name paths. -v lists all places of patterns. The exit status is 1 if a definition has no place.
    #[arg(long, group = "looking")]
    pub dry_run: bool,
    /// List what can be probed of a file: `--list FILE [FUNCTION…]`
    ///
    /// Of each function: its address, its size, how its entry can be probed, whether its return can be, and its name.
    /// FUNCTION may be a pattern with * and ?. -v tells why a probe cannot be.
    #[arg(short, long, group = "looking")]
    pub list: bool,
    /// List the USDT probes of a file, which its programmers have put there: `--usdt FILE`
    ///
    /// Of each: its address, its semaphore, its provider and name, and its arguments. A probe at its place is FILE:0xOFFSET.
    #[arg(long, group = "looking")]
    pub usdt: bool,
    /// As JSON
    #[arg(long, requires = "looking")]
    pub json: bool,
}
