//! The arguments of `hodo mem`.

use std::ffi::OsString;

use clap::{Args, Subcommand, ValueHint};

/// What `hodo mem` is given.
#[derive(Debug, Args)]
pub struct MemArgs {
    /// What to do.
    #[command(subcommand)]
    pub tool: MemTool,
}

/// The tools.
#[derive(Debug, Subcommand)]
pub enum MemTool {
    /// Run a program under the bare engine: it runs as alone, and nothing is observed
    None(NoneArgs),
}

/// What `hodo mem none` is given.
#[derive(Debug, Args)]
pub struct NoneArgs {
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}
