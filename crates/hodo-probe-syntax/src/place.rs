//! Parses the file of a probe, and the place in it.

use alloc::format;
use alloc::string::{String, ToString};

use super::error::ParseError;
use super::lexer::{Cursor, Result, is_name};
use super::model::{Location, Offset, ProbeKind, Symbol};

const PLACE: &str = "a function, a file offset (0x…) or FILE:LINE";
const RETURN: &str = "%return";

/// Parses a path and the colon after it.
pub(super) fn path(cursor: &mut Cursor) -> Result<String> {
    let start = cursor.at;
    let path = if cursor.is_quote() {
        cursor.quoted()?
    } else {
        let mut path = String::new();
        while let Some(c) = cursor.peek() {
            let at = cursor.at;
            if c == ':' || c.is_ascii_whitespace() {
                break;
            }
            cursor.next();
            if c == '\\' {
                let Some(escaped) = cursor.next() else {
                    return Err(cursor.wrong(at, "nothing follows the \\"));
                };
                path.push(escaped);
            } else {
                path.push(c);
            }
        }
        path
    };
    if path.is_empty() {
        let error = ParseError::expected(cursor.text, start, "the path of a program or library");
        return Err(error);
    }
    if path.contains('\0') {
        return Err(cursor.wrong(start, "a path cannot contain a byte 0"));
    }
    cursor.need(":", "a colon and the place in the file")?;
    Ok(path)
}

/// Parses a place. `kind` comes from the beginning of the definition. `%return` makes it a return probe.
pub(super) fn place(cursor: &mut Cursor, kind: ProbeKind) -> Result<(Location, ProbeKind)> {
    let start = cursor.at;
    if cursor.peek().is_some_and(|c| c.is_ascii_digit()) {
        return file_offset(cursor, kind);
    }
    if cursor.eat("%") {
        return usdt(cursor, start, kind);
    }
    if cursor.is_quote() {
        let text = cursor.quoted()?;
        if text.is_empty() {
            return Err(ParseError::expected(cursor.text, start, PLACE));
        }
        if cursor.eat(":") {
            return line(cursor, start, text, kind);
        }
        return symbol(cursor, start, Symbol::Name(text), kind);
    }
    let word = cursor.take(|c| !c.is_ascii_whitespace());
    if let Some(colon) = single_colon(word) {
        cursor.at = start + colon + 1;
        return line(cursor, start, word[..colon].to_string(), kind);
    }
    let length = symbol_length(cursor, start, word)?;
    cursor.at = start + length;
    let text = &word[..length];
    if text.is_empty() {
        return Err(cursor.expected(PLACE));
    }
    let name = if is_pattern(cursor, start, text)? {
        Symbol::Pattern(text.to_string())
    } else {
        Symbol::Name(text.to_string())
    };
    symbol(cursor, start, name, kind)
}

/// Parses the USDT probe after `%`.
fn usdt(cursor: &mut Cursor, start: usize, kind: ProbeKind) -> Result<(Location, ProbeKind)> {
    let provider = cursor
        .identifier("the provider of a USDT probe")?
        .to_string();
    cursor.need(":", "a colon and the name of the USDT probe")?;
    let name = cursor.identifier("the name of a USDT probe")?.to_string();
    if cursor.rest().starts_with(RETURN) || kind == ProbeKind::Return {
        let message = "a return probe needs a function; a USDT probe may be anywhere in it";
        return Err(cursor.wrong(start, message));
    }
    if !cursor.is_gap() {
        return Err(cursor.expected("a space after the USDT probe"));
    }
    Ok((Location::Usdt { provider, name }, kind))
}

fn file_offset(cursor: &mut Cursor, kind: ProbeKind) -> Result<(Location, ProbeKind)> {
    let start = cursor.at;
    let word = cursor.peek_word();
    if word.len() > 1
        && word.starts_with('0')
        && !word.starts_with(['x', 'X'])
        && !word[1..].starts_with(['x', 'X'])
    {
        let error = cursor.wrong(start, "a file offset is hexadecimal (0x…) or decimal");
        return Err(error);
    }
    let offset = cursor.number("a file offset")?;
    let kind = if cursor.eat(RETURN) {
        ProbeKind::Return
    } else {
        kind
    };
    if !cursor.is_gap() {
        let error = cursor.expected("a space or %return after the file offset");
        return Err(if cursor.peek() == Some('(') {
            error.hint("the semaphore of a USDT probe is found in the file's notes")
        } else {
            error
        });
    }
    Ok((Location::FileOffset(offset), kind))
}

/// Returns the position of the last colon that is not part of `::`.
fn single_colon(word: &str) -> Option<usize> {
    let colon = word.rfind(':')?;
    (!word[..colon].ends_with(':')).then_some(colon)
}

/// Parses the line after `FILE:`.
fn line(
    cursor: &mut Cursor,
    start: usize,
    file: String,
    kind: ProbeKind,
) -> Result<(Location, ProbeKind)> {
    if file.is_empty() {
        return Err(ParseError::expected(cursor.text, start, PLACE));
    }
    let at = cursor.at;
    let line = cursor.number("a line number")?;
    let Some(line) = u32::try_from(line).ok().filter(|line| *line > 0) else {
        return Err(cursor.wrong(at, "there is no such line; they are counted from 1"));
    };
    if !file.contains(['.', '/']) {
        let message = format!("{file} is not a source file: it has neither . nor / in its name");
        let hint = "lines are counted from the start of their file, FILE.c:LINE";
        return Err(cursor.wrong(start, message).hint(hint));
    }
    if cursor.rest().starts_with(RETURN) || kind == ProbeKind::Return {
        let message = "a return probe needs a function; a line may be anywhere in it";
        return Err(cursor.wrong(start, message));
    }
    if !cursor.is_gap() {
        return Err(cursor.expected("a space after the line number"));
    }
    Ok((Location::Line { file, line }, kind))
}

/// Returns the length of the symbol in a word. An offset and `%return` may follow it. The names of C++ operators
/// contain + and %.
fn symbol_length(cursor: &Cursor, start: usize, word: &str) -> Result<usize> {
    let operator = word.contains("operator");
    let mut length = word.len();
    if let Some(symbol) = word.strip_suffix(RETURN) {
        length = symbol.len();
        if symbol.ends_with(RETURN) {
            return Err(cursor.wrong(start + length, "%return is given twice"));
        }
    }
    if let Some(percent) = word[..length].find('%').filter(|_| !operator) {
        let error = ParseError::expected(cursor.text, start + percent, "%return or a space");
        return Err(error.suggest(&word[percent..length], [RETURN]));
    }
    let Some(plus) = word[..length].rfind('+') else {
        return Ok(length);
    };
    let offset = &word[plus + 1..length];
    let is_offset = |text: &str| {
        let number = text.starts_with(|c: char| c.is_ascii_digit());
        text == "*" || number && text.chars().all(is_name)
    };
    if is_offset(offset) {
        let before = word[..plus].rsplit_once('+');
        if !operator && before.is_some_and(|(_, before)| is_offset(before)) {
            return Err(cursor.wrong(start + plus, "there are two offsets"));
        }
        if word[..plus].ends_with(RETURN) {
            let message = "%return comes last, after the offset";
            return Err(cursor.wrong(start + plus - RETURN.len(), message));
        }
        return Ok(plus);
    }
    let (open, close) = (['(', '<', '{'], [')', '>', '}']);
    if operator || word[..plus].contains(open) && offset.contains(close) {
        return Ok(length);
    }
    Err(ParseError::expected(
        cursor.text,
        start + plus + 1,
        "an offset in bytes, or * for every instruction",
    ))
}

/// Returns whether a text is a pattern. A malformed pattern is an error.
fn is_pattern(cursor: &Cursor, start: usize, text: &str) -> Result<bool> {
    let mut rest = text;
    while let Some(open) = rest.find('[') {
        let class = &rest[open + 1..];
        let class = class.strip_prefix(['!', '^']).unwrap_or(class);
        // A ] in the first position is one of the characters.
        let first = class.chars().next().map_or(0, char::len_utf8);
        let Some(close) = class[first..].find(']') else {
            let at = start + (text.len() - rest.len()) + open;
            return Err(cursor
                .wrong(at, "this [ of a pattern has no ]")
                .hint("put a name that is not a pattern in quotes"));
        };
        rest = &class[first + close + 1..];
    }
    Ok(text.contains(['*', '?', '[']))
}

/// Parses what may follow a symbol.
fn symbol(
    cursor: &mut Cursor,
    start: usize,
    symbol: Symbol,
    kind: ProbeKind,
) -> Result<(Location, ProbeKind)> {
    let at = cursor.at;
    let mut offset = Offset::Bytes(0);
    if cursor.eat("+") {
        offset = if cursor.eat("*") {
            Offset::EveryInstruction
        } else {
            Offset::Bytes(cursor.number("an offset in bytes, or * for every instruction")?)
        };
    }
    let kind = if cursor.eat(RETURN) {
        ProbeKind::Return
    } else {
        kind
    };
    if !cursor.is_gap() {
        return Err(cursor.expected("+OFFSET, %return or a space after the function"));
    }
    if symbol.text().contains('\0') {
        return Err(cursor.wrong(start, "a name cannot contain a byte 0"));
    }
    match offset {
        Offset::EveryInstruction if kind == ProbeKind::Return => Err(cursor.wrong(
            at,
            "a return probe belongs to a function, not to every instruction",
        )),
        Offset::Bytes(1..) if kind == ProbeKind::Return => {
            Err(cursor.wrong(at, "a return probe belongs to a function, without offset"))
        }
        _ => Ok((Location::Symbol { symbol, offset }, kind)),
    }
}

/// Returns the last component of a path.
fn basename(path: &str) -> &str {
    let path = path.trim_end_matches('/');
    path.rsplit('/').next().unwrap_or(path)
}

/// Makes a name: replaces all characters but letters, digits and `_` by `_`. Returns `otherwise` if nothing is left.
fn sanitized(text: &str, otherwise: &str) -> String {
    if !text.contains(|c: char| c.is_ascii_alphanumeric()) {
        return otherwise.to_string();
    }
    let clean = text.chars().map(|c| if is_name(c) { c } else { '_' });
    let digit = text.starts_with(|c: char| c.is_ascii_digit());
    digit.then_some('_').into_iter().chain(clean).collect()
}

/// Returns the group of probes whose definitions name none: `probe_libc` for `libc.so.6`.
pub(super) fn default_group(path: &str) -> String {
    let file = basename(path);
    let short = file.split(['.', '-', '_']).next().unwrap_or_default();
    let short = if short.is_empty() { file } else { short };
    let name: String = (short.chars())
        .map(|c| if is_name(c) { c } else { '_' })
        .collect();
    format!("probe_{name}")
}

/// Returns the name of a probe whose definition has none.
pub(super) fn default_name(path: &str, place: &Location, kind: ProbeKind) -> String {
    let name = match place {
        Location::Symbol { symbol, offset } => match (sanitized(symbol.text(), "all"), offset) {
            (name, Offset::Bytes(offset @ 1..)) => format!("{name}_{offset}"),
            (name, _) => name,
        },
        Location::FileOffset(offset) => {
            // The kernel uses the same names.
            format!("p_{}_{offset:#x}", sanitized(basename(path), "file"))
        }
        Location::Usdt { provider, name } => format!("{provider}_{name}"),
        Location::Line { file, line } => format!("{}_{line}", sanitized(basename(file), "line")),
    };
    match kind {
        ProbeKind::Entry => name,
        ProbeKind::Return => format!("{name}__return"),
    }
}
