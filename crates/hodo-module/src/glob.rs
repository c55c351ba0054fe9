//! Shell globs as patterns for names.

use anyhow::{Context, Result};
use regex::Regex;

/// Converts a shell glob to a regular expression. It must match a whole name.
pub fn to_regex(glob: &str) -> String {
    let mut out = String::from("^");
    for c in glob.chars() {
        match c {
            '*' => out.push_str(".*"),
            '?' => out.push('.'),
            '[' | ']' => out.push(c),
            _ => out.push_str(&regex::escape(&c.to_string())),
        }
    }
    out.push('$');
    out
}

/// Compiles a shell glob, which must match a whole name.
///
/// # Errors
/// If it is malformed.
pub fn glob(pattern: &str) -> Result<Regex> {
    let text = to_regex(&pattern.replace("[!", "[^"));
    Regex::new(&text).with_context(|| format!("the pattern {pattern:?}"))
}
