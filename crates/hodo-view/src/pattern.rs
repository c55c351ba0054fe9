//! Name patterns, as in filters.

use anyhow::{Context, Result};
use regex::Regex;

/// How a pattern is interpreted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Match {
    /// As a regular expression. A pattern without special characters must equal the whole name.
    #[default]
    Regex,
    /// As a shell glob.
    Glob,
}

/// Compiles a name pattern as uftrace does.
///
/// # Errors
/// If the pattern is malformed.
pub fn compile(pattern: &str, kind: Match) -> Result<Regex> {
    const SPECIAL: [char; 11] = ['.', '*', '?', '+', '^', '$', '[', '(', '|', '\\', '{'];
    let text = match kind {
        Match::Glob => hodo_symbols::glob::to_regex(pattern),
        Match::Regex if pattern.contains(SPECIAL) => pattern.to_owned(),
        Match::Regex => format!("^{}$", regex::escape(pattern)),
    };
    Regex::new(&text).with_context(|| format!("the pattern {pattern:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_uftrace() {
        let is = |pattern, kind, name: &str| compile(pattern, kind).unwrap().is_match(name);
        assert!(is("main", Match::Regex, "main"));
        assert!(!is("main", Match::Regex, "domain"));
        assert!(is("^mem", Match::Regex, "memcpy"));
        assert!(is("std::.*", Match::Regex, "std::sort"));
        assert!(is("mem*", Match::Glob, "memcpy"));
        assert!(!is("mem?", Match::Glob, "memcpy"));
        assert!(is("m[a-f]x.y", Match::Glob, "mex.y"));
        assert!(!is("m[!a-f]x.y", Match::Glob, "mexzy"));
        assert!(compile("(", Match::Regex).is_err());
    }
}
