//! What is wrong with a definition, and where.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// Why a text is not a definition. `Display` shows the text with a mark below the position:
///
/// ```text
/// in probe definition:
///   p:x /bin/bash:main %rex
///                      ^ there is no register rex; did you mean rax?
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The text.
    pub text: Box<str>,
    /// The position in it, in bytes from the beginning.
    pub position: usize,
    /// The word or character there; empty at the end of the text.
    pub found: Box<str>,
    /// What was expected there; empty if `message` says everything.
    pub expected: Box<str>,
    /// What is wrong, in words.
    pub message: Box<str>,
    /// How to write it correctly.
    pub hint: Option<Box<str>>,
}

impl ParseError {
    /// Something else was expected at `position`.
    pub(super) fn expected(text: &str, position: usize, expected: &str) -> Self {
        let found = word(text, position);
        let message = match found {
            "" => format!("expected {expected}, but the definition ends here"),
            found => format!("expected {expected}, found {}", shortened(found)),
        };
        ParseError {
            expected: expected.into(),
            ..ParseError::wrong(text, position, message)
        }
    }

    /// What is at `position` is wrong.
    pub(super) fn wrong(text: &str, position: usize, message: impl Into<Box<str>>) -> Self {
        ParseError {
            text: text.into(),
            position,
            found: word(text, position).into(),
            expected: Box::default(),
            message: message.into(),
            hint: None,
        }
    }

    pub(super) fn hint(mut self, hint: impl Into<Box<str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Suggests the nearest of the `known` names, if one is near.
    pub(super) fn suggest<'a>(self, name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        match nearest(name, known) {
            Some(near) => self.hint(format!("did you mean {near}?")),
            None => self,
        }
    }

    /// Returns the number of characters before the position.
    #[must_use]
    pub fn column(&self) -> usize {
        let before = self.text.get(..self.position).unwrap_or(&self.text);
        before.chars().count()
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // With a line break or tab, the mark would be in the wrong column.
        let text = (self.text.chars()).map(|c| if c.is_control() { ' ' } else { c });
        let text: String = text.collect();
        write!(
            f,
            "in probe definition:\n  {text}\n  {:2$}^ {1}",
            "",
            self.message,
            self.column()
        )?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for ParseError {}

/// Returns the word at `position`, or another single character.
fn word(text: &str, position: usize) -> &str {
    let rest = text.get(position..).unwrap_or_default();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    // The word may begin with a character that shows its kind.
    let first = rest.chars().next().map_or(0, char::len_utf8);
    let prefixed = rest.starts_with(['%', '$', '@', '\\']) || rest.starts_with(is_word);
    let more = rest[first..]
        .find(|c| !is_word(c))
        .unwrap_or(rest.len() - first);
    &rest[..if prefixed { first + more } else { first }]
}

fn shortened(text: &str) -> String {
    match text.chars().next() {
        Some(c) if c.is_whitespace() => "a space".to_string(),
        _ if text.chars().count() > 32 => text.chars().take(32).chain(['…']).collect(),
        _ => text.to_string(),
    }
}

/// Returns the name in `known` that is nearest to `name`, if it takes only few changes.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = name.chars().count();
    if length > 32 {
        return None;
    }
    let most = (length / 3).clamp(1, 3);
    let near = known
        .into_iter()
        .map(|known| (distance(name, known), known))
        .filter(|&(distance, known)| distance <= most && distance < known.chars().count());
    near.min_by_key(|&(distance, _)| distance)
        .map(|(_, known)| known)
}

/// Returns how many insertions, deletions, replacements and swaps of neighbours turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}
