//! Static keys.

use std::ffi::OsString;

use clap::{ArgAction, Args, ValueEnum, ValueHint};

use super::{Screen, process};

/// What keys are, and how to name them.
pub const KEYS: &str = "\
A static key is a switch in a program. While it is off, each branch on it costs a single nop: see the crate hodo-keys.
A process that has called hodo_keys::expose() lists and switches its keys itself, while it runs. For other processes hodo
reads their memory, and stops all threads for a moment to switch keys, which takes the rights of a debugger.
In a PATTERN, * stands for any text and ? for any character: 'mycrate::net::*', or 'net:*' for tracepoints.
A PATTERN without :: also matches the last part of a name: VERBOSE. LEVELS[3] is an element of an array, LEVELS the whole.
If a key has users (column USERS) when you switch it off, it stays on until they have gone.
To switch keys when a program starts, use the environment: HODO_KEYS='VERBOSE,net:*,STRICT=off' PROGRAM.

Examples:
  hodo keys list ./prog
  hodo keys -p 1234 list
  hodo keys -p 1234 enable VERBOSE 'mycrate::net::*'";

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KeysAction {
    /// List the keys of a file, or of a process with their states
    List,
    /// Switch keys of a process on
    Enable,
    /// Switch keys of a process off
    Disable,
}

/// `keys`.
#[derive(Debug, Args)]
pub struct KeysArgs {
    /// The process
    #[arg(
        short,
        long,
        value_name = "PID",
        value_parser = process,
        action = ArgAction::Append,
        required_if_eq_any = [("action", "enable"), ("action", "disable")]
    )]
    pub pid: Option<i32>,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub screen: Screen,
    /// What to do
    #[arg(help_heading = "Arguments")]
    pub action: KeysAction,
    /// The program or library (without -p), then patterns of names. `list` without a pattern lists all keys
    #[arg(
        value_name = "FILE|PATTERN",
        required_unless_present = "pid",
        required_if_eq_any = [("action", "enable"), ("action", "disable")],
        help_heading = "Arguments",
        value_hint = ValueHint::FilePath
    )]
    pub words: Vec<OsString>,
}
