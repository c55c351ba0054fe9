//! Which keys a pattern is about.

use std::format;

use crate::key::Key;

/// Whether a pattern matches a key: its name, or for a pattern without `::` the last part of it; with the index or without, if it is
/// an element of an array.
pub fn matches(pattern: &str, key: &Key) -> bool {
    matches_name(pattern, key.name(), key.index())
}

fn matches_name(pattern: &str, name: &str, index: Option<usize>) -> bool {
    let last = name.rsplit("::").next().filter(|_| !pattern.contains("::"));
    [Some(name), last].into_iter().flatten().any(|name| {
        glob(pattern, name) || index.is_some_and(|index| glob(pattern, &format!("{name}[{index}]")))
    })
}

/// Whether a text is what a pattern says: `*` stands for any characters, `?` for one.
fn glob(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // Where to go on if the last `*` has to stand for one character more.
    let mut again = None;
    loop {
        let mut here = (pattern.clone(), text.clone());
        match (here.0.next(), here.1.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                pattern = here.0;
                again = Some((pattern.clone(), text.clone()));
                continue;
            }
            (Some(wanted), Some(is)) if wanted == is || wanted == '?' => {
                (pattern, text) = here;
                continue;
            }
            _ => {}
        }
        let Some((rest, from)) = &mut again else {
            return false;
        };
        if from.next().is_none() {
            return false;
        }
        pattern = rest.clone();
        text = from.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, is) in [
            ("", "", true),
            ("", "a", false),
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("*", "abc", true),
            ("a*", "a", true),
            ("*c", "abc", true),
            ("*c", "abcd", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("?", "", false),
            ("?", "ä", true),
            ("a?c", "abc", true),
            ("*?", "", false),
            ("*a?", "aaab", true),
            ("**", "x", true),
            ("[3]", "[3]", true),
        ] {
            assert_eq!(glob(pattern, text), is, "{pattern:?} {text:?}");
        }
        // A pattern that would take for ever if every way were tried.
        let (stars, text) = ("a*".repeat(30), "a".repeat(2000));
        assert!(!glob(&format!("{stars}b"), &text));
    }

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
