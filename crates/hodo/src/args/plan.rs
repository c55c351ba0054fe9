//! What could be traced.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::Screen;

/// `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The program or library
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Of the instructions that could be probed, not of the functions that could be traced
    #[arg(long)]
    pub every_instruction: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub screen: Screen,
}
