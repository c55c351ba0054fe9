//! Plans.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::Screen;

/// `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The program or library
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Show which instructions can be probed, instead of which functions can be traced
    #[arg(long)]
    pub every_instruction: bool,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub screen: Screen,
}
