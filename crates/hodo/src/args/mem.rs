//! The arguments of `hodo mem`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

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
    /// Count instructions, loads and stores, exactly
    Stat(StatArgs),
}

/// What `hodo mem none` is given.
#[derive(Debug, Args)]
pub struct NoneArgs {
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum MemFormat {
    /// Lines for people
    #[default]
    Text,
    /// JSON
    Json,
}

/// What `hodo mem stat` is given.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// How to write the result
    #[arg(long, value_enum, default_value_t)]
    pub format: MemFormat,
    /// Write the result to this file instead of the standard error output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}
