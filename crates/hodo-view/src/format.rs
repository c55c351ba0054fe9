//! How to write times, names and colors.

/// Escape sequences, or nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Color(pub bool);

impl Color {
    /// Returns what to write before and after gray text. Comments are gray.
    pub fn gray(self) -> (&'static str, &'static str) {
        if self.0 {
            ("\x1b[90m", "\x1b[0m")
        } else {
            ("", "")
        }
    }

    /// Returns `text` in red.
    pub fn red(self, text: &str) -> String {
        if self.0 {
            format!("\x1b[31m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Formats a duration in ten columns: `  1.234 us`. Zero is blank.
pub fn duration(ns: u64, color: Color) -> String {
    let mut text = Vec::with_capacity(20);
    push_duration(&mut text, ns, color);
    String::from_utf8(text).unwrap_or_default()
}

/// Appends a duration.
#[inline]
pub fn push_duration(text: &mut Vec<u8>, ns: u64, color: Color) {
    const UNITS: [&[u8; 2]; 5] = [b"us", b"ms", b" s", b" m", b" h"];
    const COLORS: [&[u8]; 5] = [b"", b"\x1b[32m", b"\x1b[33m", b"\x1b[35m", b"\x1b[31m"];
    const STEPS: [u64; 6] = [1000, 1000, 1000, 60, 60, u64::MAX];
    if ns == 0 {
        text.extend_from_slice(b"          ");
        return;
    }
    let mut whole = ns;
    let mut part = 0;
    let mut unit = 0;
    for (index, step) in STEPS[..5].iter().enumerate() {
        part = whole % step;
        whole /= step;
        unit = index;
        if whole < STEPS[index + 1] {
            break;
        }
    }
    if whole > 999 {
        (whole, part) = (999, 999);
    }
    let digit = |n: u64| b'0' + (n % 10) as u8;
    let leading = |n: u64| if whole < n { b' ' } else { digit(whole / n) };
    text.extend_from_slice(&[
        leading(100),
        leading(10),
        digit(whole),
        b'.',
        digit(part / 100),
        digit(part / 10),
        digit(part),
        b' ',
    ]);
    if color.0 && !COLORS[unit].is_empty() {
        text.extend_from_slice(COLORS[unit]);
        text.extend_from_slice(UNITS[unit]);
        text.extend_from_slice(b"\x1b[0m");
    } else {
        text.extend_from_slice(UNITS[unit]);
    }
}

/// Returns text of the recorded program without control characters, for a terminal or a document.
pub fn printable(text: String) -> String {
    if !text.contains(char::is_control) {
        return text;
    }
    let mut shown = String::new();
    for c in text.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// Formats a timestamp: seconds and nanoseconds.
pub fn timestamp(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Parses a time: a number followed by `ns` (or nothing), `us`, `ms`, `s` or `m`.
pub fn parse_time(text: &str) -> Option<u64> {
    let at = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let scale = match unit.trim() {
        "" | "ns" | "nsec" => 1.0,
        "us" | "usec" => 1e3,
        "ms" | "msec" => 1e6,
        "s" | "sec" => 1e9,
        "m" | "min" => 6e10,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    Some((number * scale).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_places() {
        let text = |ns| duration(ns, Color(false));
        assert_eq!(text(0), "          ");
        assert_eq!(text(40), "  0.040 us");
        assert_eq!(text(999_999), "999.999 us");
        assert_eq!(text(1_558_100), "  1.558 ms");
        assert_eq!(text(2_003_000_000), "  2.003  s");
        assert_eq!(text(65_000_000_000), "  1.005  m");
        assert_eq!(text(3_600_000_000_000), "  1.000  h");
        assert_eq!(
            duration(1_558_100, Color(true)),
            "  1.558 \x1b[32mms\x1b[0m"
        );
    }

    #[test]
    fn control_characters_are_written_as_text() {
        let text = |text: &str| printable(text.to_owned());
        assert_eq!(text("f(\u{e9}, \\)"), "f(\u{e9}, \\)");
        assert_eq!(text("\x1b[2J\u{9b}\n"), "\\u{1b}[2J\\u{9b}\\n");
        assert_eq!(text(&text("\r")), "\\r");
    }

    #[test]
    fn times_are_read_with_units() {
        assert_eq!(parse_time("1500"), Some(1500));
        assert_eq!(parse_time("10us"), Some(10_000));
        assert_eq!(parse_time("1.5ms"), Some(1_500_000));
        assert_eq!(parse_time("1parsec"), None);
    }
}
