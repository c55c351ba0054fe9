//! `hodo cache`: the plans that are kept between recordings.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use hodo_module::cache;

use crate::args::CacheAction;

/// Lists or removes plans.
pub fn cache(action: CacheAction) -> Result<ExitCode> {
    let Some(directory) = cache::wanted() else {
        let off = std::env::var_os(cache::VARIABLE).is_some_and(|value| value == "off");
        let why = match off {
            true => "HODO_CACHE is off",
            false => "neither XDG_CACHE_HOME nor HOME names a directory",
        };
        writeln!(crate::output::stdout(), "no plans are kept: {why}")?;
        return Ok(ExitCode::SUCCESS);
    };
    let shown = directory.display();
    let mut out = crate::output::stdout();
    if action == CacheAction::Clear {
        let bytes = cache::clear(&directory)?;
        writeln!(out, "{bytes} bytes removed from {shown}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let entries = cache::entries(&directory).with_context(|| format!("reading {shown}"))?;
    if action == CacheAction::List {
        for entry in &entries {
            let name = entry.path.file_name().unwrap_or_default();
            writeln!(out, "{:>12}  {}", entry.size, name.display())?;
        }
    }
    let bytes: u64 = entries.iter().map(|entry| entry.size).sum();
    writeln!(
        out,
        "{bytes:>12}  bytes in {} files in {shown}",
        entries.len()
    )?;
    Ok(ExitCode::SUCCESS)
}
