//! Parses a whole definition.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::fetch::{At, fetch_arg};
use super::lexer::{Cursor, Result};
use super::model::{Definition, FetchArg, Location, ProbeKind, Source};
use super::registers::Set;
use super::{MAX_ARGS, MAX_TEXT, ParseError, SYSCALLS, action, expr, place};

/// Reads a definition.
///
/// # Errors
///
/// If the text does not follow the [grammar](super), or if it makes no sense for any program: a function's argument
/// fetched in the middle of the function, a text compared with a number.
pub fn parse(text: &str) -> Result<Definition> {
    parse_for(Set::NATIVE, text)
}

/// Reads a definition for code of an instruction set.
///
/// # Errors
///
/// Those of [`parse`].
pub fn parse_for(registers: Set, text: &str) -> Result<Definition> {
    let mut cursor = Cursor::new(text, registers);
    if text.len() > MAX_TEXT {
        let mut end = MAX_TEXT;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let message = format!("a definition has at most {MAX_TEXT} bytes");
        let error = ParseError::wrong(&text[..end], end, message);
        return Err(error);
    }
    cursor.spaces();
    let head = head(&mut cursor)?;
    let path = place::path(&mut cursor)?;
    cursor.brings = path == SYSCALLS;
    let (place, kind) = place::place(&mut cursor, head.kind)?;
    cursor.spaces();
    let after = post(&mut cursor, kind, &place)?;
    let at = At {
        kind,
        place: &place,
        after,
    };
    let mut args = args(&mut cursor, at)?;
    if cursor.brings && args.is_empty() {
        args.push(FetchArg {
            name: "arg1".to_string(),
            source: Source::Variable("$params".to_string()),
            ty: None,
        });
    }
    let mut condition = None;
    if begins_condition(&cursor) {
        cursor.word();
        cursor.spaces();
        condition = Some(expr::condition(&mut cursor, &mut args)?);
    }
    if condition.is_some() || !args.is_empty() {
        action::separator(&mut cursor)?;
    }
    let actions = action::actions(&mut cursor, at, &mut args)?;
    let named = head.name.is_some();
    Ok(Definition {
        kind,
        group: head.group.unwrap_or_else(|| place::default_group(&path)),
        name: (head.name).unwrap_or_else(|| place::default_name(&path, &place, kind)),
        named,
        path,
        place,
        after,
        args,
        condition,
        actions,
    })
}

/// Takes `post`, if it is there.
fn post(cursor: &mut Cursor, kind: ProbeKind, place: &Location) -> Result<bool> {
    let start = cursor.at;
    let mut ahead = *cursor;
    if ahead.word() != "post" || !ahead.is_gap() {
        return Ok(false);
    }
    if kind == ProbeKind::Return {
        let error = cursor.wrong(start, "there is no post when a function returns");
        return Err(error.hint("the function has returned then, and $retval is what it returned"));
    }
    if matches!(place, Location::Usdt { .. }) {
        let error = cursor.wrong(start, "there is no post of a USDT probe");
        return Err(error.hint("it marks a place, and its instruction does nothing"));
    }
    *cursor = ahead;
    cursor.spaces();
    Ok(true)
}

/// What precedes the path.
struct Head {
    kind: ProbeKind,
    group: Option<String>,
    name: Option<String>,
}

fn head(cursor: &mut Cursor) -> Result<Head> {
    let mut head = Head {
        kind: ProbeKind::Entry,
        group: None,
        name: None,
    };
    let start = cursor.at;
    let kind = match cursor.peek() {
        Some('p') => ProbeKind::Entry,
        Some('r') => ProbeKind::Return,
        Some('-') => {
            return Err(cursor
                .wrong(start, "probes are defined here, not removed")
                .hint("write a file name that begins with - as ./-…"));
        }
        None => return Err(cursor.expected("a probe: p PATH:FUNCTION or r PATH:FUNCTION")),
        // The definition begins with the path.
        Some(_) => return Ok(head),
    };
    let mut ahead = *cursor;
    ahead.next();
    if ahead.peek() != Some(':') && !ahead.peek().is_some_and(|c| c.is_ascii_whitespace()) {
        return Ok(head);
    }
    *cursor = ahead;
    head.kind = kind;
    if cursor.eat(":") {
        if cursor.peek() == Some('/') {
            let error = cursor.expected("the name of the probe");
            return Err(error.hint("without a name there is a space, not a colon, before the path"));
        }
        let name = cursor.identifier("the name of the probe")?.to_string();
        if cursor.eat("/") {
            head.group = Some(name);
            if !cursor.is_gap() {
                head.name = Some(cursor.identifier("the name of the probe")?.to_string());
            }
        } else {
            head.name = Some(name);
        }
    }
    if !cursor.spaces() {
        let letter = &cursor.text[start..=start];
        let hint = format!("a file called {letter} is written ./{letter}");
        let error = cursor.expected("a space and PATH:PLACE");
        return Err(if cursor.is_end() {
            error.hint(hint)
        } else {
            error.hint("names have letters, digits and _")
        });
    }
    Ok(head)
}

fn begins_condition(cursor: &Cursor) -> bool {
    let follows = cursor.rest().strip_prefix("if");
    follows.is_some_and(|rest| {
        rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_whitespace() || c == '(')
    })
}

fn args(cursor: &mut Cursor, at: At) -> Result<Vec<FetchArg>> {
    let mut args: Vec<FetchArg> = Vec::new();
    while !cursor.is_end()
        && cursor.peek() != Some(',')
        && !begins_condition(cursor)
        && !action::begins(cursor)
    {
        let start = cursor.at;
        let word = cursor.peek_word();
        let arg = fetch_arg(cursor, at, args.len())
            .map_err(|error| with_action(error, start, word, args.last()))?;
        if args.iter().any(|other| other.name == arg.name) {
            return Err(cursor
                .wrong(
                    start,
                    format!("there are two arguments called {}", arg.name),
                )
                .hint("give one another name, NAME=…"));
        }
        if args.len() == MAX_ARGS {
            return Err(cursor.wrong(start, format!("a probe has at most {MAX_ARGS} arguments")));
        }
        args.push(arg);
        cursor.spaces();
    }
    Ok(args)
}

/// Without a condition before it, a misspelt action looks like a variable. Says so in the error if the word at the
/// beginning of the argument at `start`, or the variable before it, may be one.
fn with_action(
    error: ParseError,
    start: usize,
    word: &str,
    before: Option<&FetchArg>,
) -> ParseError {
    let before = match before.map(|arg| (&arg.source, arg.ty)) {
        Some((Source::Variable(text), None)) if error.position == start => text,
        _ => "",
    };
    let word = if error.position == start {
        before
    } else {
        word
    };
    match action::meant(word) {
        Some(near) if near == word => error.hint(format!("the action {near} has no parameter")),
        Some(near) => error.hint(format!("did you mean the action {near}?")),
        None => error,
    }
}
