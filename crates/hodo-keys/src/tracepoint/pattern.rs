//! Patterns of names.

use crate::glob;
use crate::key::Key;

/// Length of the longest pattern in bytes; names are shorter.
const LONGEST: usize = 192;

/// `group:name`, with `*` for any characters and `?` for one.
#[derive(Debug, Clone, Copy)]
pub struct Pattern {
    text: [u8; LONGEST],
    length: usize,
}

impl Pattern {
    /// A pattern that matches nothing.
    pub const NONE: Self = Self {
        text: [0; LONGEST],
        length: 0,
    };

    /// Returns `None` if the pattern cannot match anything, or is too long.
    pub fn new(pattern: &str) -> Option<Self> {
        let mut text = [0; LONGEST];
        if !pattern.contains([':', '*']) {
            return None;
        }
        text.get_mut(..pattern.len())?
            .copy_from_slice(pattern.as_bytes());
        let length = pattern.len();
        Some(Self { text, length })
    }

    /// Returns whether it matches the tracepoint of a key.
    pub fn matches_tracepoint(&self, key: &Key) -> bool {
        key.is_tracepoint() && self.matches(key.name())
    }

    pub fn matches(&self, name: &str) -> bool {
        core::str::from_utf8(&self.text[..self.length])
            .is_ok_and(|pattern| glob::matches(pattern, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        let all = [
            ("net:send", "net:send", true),
            ("net:send", "net:sends", false),
            ("net:*", "net:send", true),
            ("net:*", "net:", true),
            ("net:*", "disk:read", false),
            ("*", "net:send", true),
            ("*:send", "net:send", true),
            ("*:s?nd", "net:send", true),
            ("*e*e*", "net:send", true),
            ("*e*e*e*", "net:send", false),
            ("n?t:*d", "net:send and", true),
            ("n?t:*d", "net:send an", false),
            ("**:**d", "net:send", true),
            ("g:?", "g:ü", true),
            ("*ü", "g:üü", true),
        ];
        for (pattern, name, expected) in all {
            let pattern = Pattern::new(pattern).expect("a pattern");
            assert_eq!(pattern.matches(name), expected, "{pattern:?} {name}");
        }
    }

    #[test]
    fn patterns_that_cannot_match_are_refused() {
        assert!(Pattern::new("send").is_none() && Pattern::new("").is_none());
        assert!(Pattern::new(&"g:".repeat(96)).is_some());
        assert!(Pattern::new(&"g:".repeat(97)).is_none());
        assert!(!Pattern::NONE.matches("net:send"));
    }
}
