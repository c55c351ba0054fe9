//! Shell globs as patterns for names.

/// Converts a shell glob to a regular expression, which matches whole names: `*` stands for any characters, `?` for
/// one, and `[a-c]`, `[!a-c]` for one of a class.
#[must_use]
pub fn to_regex(glob: &str) -> String {
    /// What means something in regular expressions.
    const SPECIAL: &str = r"\.+*?()|[]{}^$#&-~";
    let mut out = String::from("^");
    let mut class = false;
    for c in glob.chars() {
        match c {
            '*' if !class => out.push_str(".*"),
            '?' if !class => out.push('.'),
            '[' | ']' => {
                class = c == '[';
                out.push(c);
            }
            '!' | '^' if class && out.ends_with('[') => out.push('^'),
            '-' if class => out.push(c),
            _ => {
                if SPECIAL.contains(c) {
                    out.push('\\');
                }
                out.push(c);
            }
        }
    }
    out.push('$');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_are_regular_expressions() {
        for (glob, regex) in [
            ("mem*", "^mem.*$"),
            ("a?c", "^a.c$"),
            ("a.b", r"^a\.b$"),
            ("f(int)", r"^f\(int\)$"),
            ("operator+", r"^operator\+$"),
            ("[a-c]*", "^[a-c].*$"),
            ("[!a-c]", "^[^a-c]$"),
            ("[^a]", "^[^a]$"),
            ("[*?!]x", r"^[\*\?!]x$"),
            ("x-y!", r"^x\-y!$"),
        ] {
            assert_eq!(to_regex(glob), regex, "{glob}");
        }
    }
}
