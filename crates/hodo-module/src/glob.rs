//! Shell globs that select names.

use anyhow::{Context, Result};
use regex::Regex;

pub use hodo_symbols::glob::to_regex;

/// Compiles a shell glob, which must match a whole name.
///
/// # Errors
/// If it is malformed.
pub fn glob(pattern: &str) -> Result<Regex> {
    Regex::new(&to_regex(pattern)).with_context(|| format!("the pattern {pattern:?}"))
}
