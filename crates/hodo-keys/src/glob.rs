//! Patterns of names.

/// Returns whether a text matches a pattern: `*` stands for any characters, `?` for one.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // Where to continue if the last `*` has to stand for one more character.
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
    use std::format;

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
            assert_eq!(matches(pattern, text), is, "{pattern:?} {text:?}");
        }
        // A pattern that would take forever if every possibility were tried.
        let (stars, text) = ("a*".repeat(30), "a".repeat(2000));
        assert!(!matches(&format!("{stars}b"), &text));
    }
}
