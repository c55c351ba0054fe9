//! Which keys a pattern matches.

use std::format;

use crate::glob::matches as glob;
use crate::key::Key;

/// Returns whether a pattern matches a key: its name, or, for a pattern without `::`, the last part of its name. If it
/// is an element of an array, the index may be given or left out.
pub fn matches(pattern: &str, key: &Key) -> bool {
    matches_name(pattern, key.name(), key.index())
}

fn matches_name(pattern: &str, name: &str, index: Option<usize>) -> bool {
    let last = name.rsplit("::").next().filter(|_| !pattern.contains("::"));
    [Some(name), last].into_iter().flatten().any(|name| {
        glob(pattern, name) || index.is_some_and(|index| glob(pattern, &format!("{name}[{index}]")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_matched_whole_or_by_their_last_part() {
        for (pattern, name, index, is) in [
            ("VERBOSE", "mycrate::net::VERBOSE", None, true),
            ("net::VERBOSE", "mycrate::net::VERBOSE", None, false),
            ("*::net::VERBOSE", "mycrate::net::VERBOSE", None, true),
            ("mycrate::net::*", "mycrate::net::VERBOSE", None, true),
            ("mycrate::net::*", "mycrate::VERBOSE", None, false),
            ("mycrate", "mycrate::VERBOSE", None, false),
            ("VERB*", "mycrate::VERBOSE", None, true),
            ("net:*", "net:sent", None, true),
            ("sent", "net:sent", None, false),
            ("*:sent", "net:sent", None, true),
            ("LEVELS", "a::LEVELS", Some(0), true),
            ("LEVELS[3]", "a::LEVELS", Some(3), true),
            ("LEVELS[3]", "a::LEVELS", Some(30), false),
            ("LEVELS[3]", "a::LEVELS", None, false),
            ("a::LEVELS[?]", "a::LEVELS", Some(3), true),
            ("a::LEVELS[*]", "a::LEVELS", Some(30), true),
            ("verbose", "a::VERBOSE", None, false),
            ("", "a::VERBOSE", None, false),
        ] {
            assert_eq!(
                matches_name(pattern, name, index),
                is,
                "{pattern} {name} {index:?}"
            );
        }
    }
}
