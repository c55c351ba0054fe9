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
    /// Record every access of memory that a program makes
    Record(RecordMemArgs),
    /// Show accesses, one a line
    View(ViewMemArgs),
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

/// What `hodo mem record` is given.
#[derive(Debug, Args)]
pub struct RecordMemArgs {
    /// Where to put the recording
    #[arg(short, long, value_name = "DIR", default_value = "hodo.mem", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// A recording, or a program that is run.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// Read this recording instead of running a program
    #[arg(short, long, value_name = "DIR", conflicts_with = "command", required_unless_present = "command", value_hint = ValueHint::DirPath)]
    pub directory: Option<PathBuf>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
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

/// How accesses are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ViewFormat {
    /// Columns for people
    #[default]
    Text,
    /// Comma-separated values
    Csv,
}

/// What `hodo mem view` is given.
#[derive(Debug, Args)]
pub struct ViewMemArgs {
    /// How to write the accesses
    #[arg(long, value_enum, default_value_t)]
    pub format: ViewFormat,
    /// Show only the accesses of this thread; threads are numbered from 0
    #[arg(long, value_name = "NUMBER")]
    pub thread: Option<u32>,
    /// Show at most this many accesses
    #[arg(long, value_name = "NUMBER")]
    pub limit: Option<u64>,
    /// Write to this file: without it, to the standard output, or to the standard error output if a program is run
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// What to show.
    #[command(flatten)]
    pub source: SourceArgs,
}

/// What `hodo mem stat` is given.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// How to write the result
    #[arg(long, value_enum, default_value_t)]
    pub format: MemFormat,
    /// Write to this file: without it, to the standard output, or to the standard error output if a program is run
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// What to count.
    #[command(flatten)]
    pub source: SourceArgs,
}
