//! Requests and answers. A request is a line of words: `list`, `enable` or `disable`, then patterns. The answer is
//! lines of JSON: one per key, then one that ends the list or reports an error.

use std::format;
use std::string::String;
use std::vec::Vec;

use super::{Unswitched, keys, pattern, switch, unmatched};
use crate::registry::{self, Found};

/// The last line of the answer to a successful request.
const DONE: &str = "{\"done\":true}\n";

/// The answer to a request.
pub fn answer(line: &[u8]) -> String {
    let Ok(line) = str::from_utf8(line) else {
        return error("the request is not UTF-8");
    };
    let mut words = line.split_ascii_whitespace();
    let verb = words.next().unwrap_or_default();
    let patterns: Vec<&str> = words.collect();
    match verb {
        "list" => list(&patterns),
        "enable" | "disable" if patterns.is_empty() => error("there is no pattern"),
        "enable" | "disable" => change(&patterns, verb == "enable"),
        _ => error("the request is not one of list, enable and disable"),
    }
}

/// The line that reports an error.
pub fn error(text: &str) -> String {
    format!("{{\"error\":{}}}\n", quoted(text))
}

fn list(patterns: &[&str]) -> String {
    let mut answer = String::new();
    // Under the lock, so that no library is unloaded with its keys.
    let missing = registry::looking(|guard| {
        let keys = keys(guard);
        let missing = unmatched(patterns, &keys);
        if missing.is_empty() {
            let wanted = |found: &&Found| patterns.iter().any(|p| pattern::matches(p, found.key));
            let all = patterns.is_empty();
            keys.iter()
                .filter(|found| all || wanted(found))
                .for_each(|found| tell(&mut answer, found, None));
        }
        missing
    });
    match missing {
        Ok(missing) if missing.is_empty() => answer + DONE,
        Ok(missing) => refusal(&Unswitched::NoMatch(missing)),
        Err(error) => refusal(&error.into()),
    }
}

fn change(patterns: &[&str], on: bool) -> String {
    let mut answer = String::new();
    let switched = switch(patterns, on, |found, before| {
        tell(&mut answer, found, Some(before));
    });
    match switched {
        Ok(()) => answer + DONE,
        Err(error) => refusal(&error),
    }
}

fn refusal(why: &Unswitched) -> String {
    match why {
        Unswitched::NoMatch(patterns) => {
            let patterns: Vec<String> = patterns.iter().map(|text| quoted(text)).collect();
            format!("{{\"unmatched\":[{}]}}\n", patterns.join(","))
        }
        Unswitched::Failed(why) => error(&format!("{why}")),
    }
}

/// Appends the line about a key. `before`: whether it was enabled before the request.
fn tell(answer: &mut String, found: &Found, before: Option<bool>) {
    use core::fmt::Write;
    let Found { key, branches } = found;
    // Writing to a string cannot fail.
    let _ = write!(answer, "{{\"name\":{}", quoted(key.name()));
    if let Some(index) = key.index() {
        let _ = write!(answer, ",\"index\":{index}");
    }
    if let Some(before) = before {
        let _ = write!(answer, ",\"before\":{before}");
    }
    let _ = writeln!(
        answer,
        ",\"enabled\":{},\"users\":{},\"initial\":{},\"branches\":{branches},\"kind\":\"{}\"}}",
        key.is_enabled(),
        key.users(),
        key.initially_enabled(),
        if key.is_tracepoint() {
            "tracepoint"
        } else {
            "key"
        },
    );
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    use core::fmt::Write;
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\0'..=' ' if character != ' ' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(character));
            }
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_requests_are_refused() {
        for (line, wrong) in [
            (
                &b""[..],
                "the request is not one of list, enable and disable",
            ),
            (
                b"LIST",
                "the request is not one of list, enable and disable",
            ),
            (b"enable  ", "there is no pattern"),
            (b"list \xff", "the request is not UTF-8"),
        ] {
            assert_eq!(answer(line), format!("{{\"error\":\"{wrong}\"}}\n"));
        }
    }

    #[test]
    fn texts_are_quoted() {
        assert_eq!(quoted("a \"b\"\\\n\u{1}ä"), r#""a \"b\"\\\u000a\u0001ä""#);
        let line = r#"{"unmatched":["no\"ne","x"]}"#;
        assert_eq!(answer(b"list no\"ne x"), format!("{line}\n"));
        assert_eq!(answer(b"disable no\"ne\tx\r"), format!("{line}\n"));
    }

    #[test]
    fn keys_are_listed_and_switched() {
        crate::define_static_key_array_false!(TOLD[2]);
        crate::define_static_key_true!(OTHER);
        // There must be one copy of the code, because its branches are counted.
        #[inline(never)]
        fn seen() -> (bool, bool, bool) {
            (
                crate::static_branch_unlikely!(TOLD[0]),
                crate::static_branch_unlikely!(TOLD[1]),
                crate::static_branch_likely!(OTHER),
            )
        }
        let name = "hodo_keys::control::answer::tests";
        assert_eq!(
            answer(b"enable *tests::TOLD[1]"),
            format!(
                "{{\"name\":\"{name}::TOLD\",\"index\":1,\"before\":false,\"enabled\":true,\"users\":0,\"initial\":false,\
                 \"branches\":1,\"kind\":\"key\"}}\n{DONE}"
            )
        );
        assert_eq!(seen(), (false, true, true));
        // All or nothing.
        assert_eq!(answer(b"enable TOLD NONE"), "{\"unmatched\":[\"NONE\"]}\n");
        assert_eq!(seen(), (false, true, true));
        OTHER.inc().expect("counted");
        let told = answer(b"disable TOLD OTHER TOLD");
        assert_eq!(told.lines().count(), 4);
        assert!(told.contains(
            "OTHER\",\"before\":true,\"enabled\":true,\"users\":1,\"initial\":true,\"branches\":1"
        ));
        assert_eq!(seen(), (false, false, true));
        OTHER.dec().expect("switched");
        assert_eq!(seen(), (false, false, false));
        let listed = answer(format!("list {name}::*").as_bytes());
        let listed: Vec<_> = listed.lines().collect();
        assert_eq!(listed.len(), 4);
        assert!(listed[0].contains("::OTHER\",\"enabled\":false,\"users\":0"));
        assert!(listed[1].contains("::TOLD\",\"index\":0,\"enabled\":false"));
    }
}
