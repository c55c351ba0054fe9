//! Static keys.

use std::ffi::OsString;

use clap::{Args, ValueEnum, ValueHint};

use super::{Screen, process};

/// What keys are, and how they are named.
pub const KEYS: &str = "\
A static key is a switch of a program, asked by branches that cost a single nop while it is off: see the crate hodo-keys.
A process that has called hodo_keys::expose() is asked, and switches its keys while it runs. Of another one the memory is read,
and all threads are stopped for a moment to switch keys, which takes the rights of a debugger.
A PATTERN is a name in which * stands for any text and ? for any character, as 'mycrate::net::*', or 'net:*' for tracepoints.
Without :: it may also be the last part of a name: VERBOSE. LEVELS[3] is an element of an array, LEVELS all of them.
A key that is switched off while it has users (see the column USERS) stays on until these have gone.
At the start of a program, the environment does the same: HODO_KEYS='VERBOSE,net:*,STRICT=off' PROGRAM.

Examples:
  hodo keys list ./prog
  hodo keys -p 1234 list
  hodo keys -p 1234 enable VERBOSE 'mycrate::net::*'";

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KeysAction {
    /// List keys: of a file, or of a process with what they are there
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
        required_if_eq_any = [("action", "enable"), ("action", "disable")]
    )]
    pub pid: Option<i32>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub screen: Screen,
    /// What to do
    #[arg(help_heading = "Arguments")]
    pub action: KeysAction,
    /// Without -p the program or library; then patterns of names. `list` without a pattern lists all keys
    #[arg(
        value_name = "FILE|PATTERN",
        required_unless_present = "pid",
        required_if_eq_any = [("action", "enable"), ("action", "disable")],
        help_heading = "Arguments",
        value_hint = ValueHint::FilePath
    )]
    pub words: Vec<OsString>,
}
