//! Actions: what happens at a hit.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::expr::{Class, class_of, named, named_or_brought, unknown};
use super::fetch::At;
use super::lexer::{Cursor, Result};
use super::model::{
    Action, Bucket, Expr, FetchArg, HistKey, HistSort, Histogram, ProbeKind, ProbeName, SortBy,
};
use super::{HIST_SIZE, MAX_HIST_SIZE, MAX_KEYS, MAX_SNAPSHOT_SIZE, SNAPSHOT_SIZE};

/// The words that begin actions, and whether a colon may follow each.
const ACTIONS: [(&str, bool); 10] = [
    ("print", false),
    ("count", false),
    ("hist", true),
    ("stacktrace", false),
    ("snapshot", true),
    ("enable", true),
    ("disable", true),
    ("traceon", false),
    ("traceoff", false),
    ("return", true),
];

/// Returns whether an action begins here, and not an argument.
pub(super) fn begins(cursor: &Cursor) -> bool {
    let word = cursor.peek_word();
    let Some((_, parameter)) = ACTIONS.iter().find(|(action, _)| *action == word) else {
        return false;
    };
    match cursor.rest()[word.len()..].chars().next() {
        None | Some(',') => true,
        Some(':') => *parameter,
        Some(c) => c.is_ascii_whitespace(),
    }
}

/// Returns the action whose name is nearest to this word, if one is near.
pub(super) fn meant(word: &str) -> Option<&'static str> {
    super::error::nearest(word, ACTIONS.map(|(action, _)| action))
}

/// Parses all actions, up to the end of the text. The separator before them has been read.
pub(super) fn actions(
    cursor: &mut Cursor,
    at: At,
    args: &mut Vec<FetchArg>,
) -> Result<Vec<Action>> {
    let mut actions: Vec<Action> = Vec::new();
    while !cursor.is_end() {
        let start = cursor.at;
        let action = action(cursor, at, args)?;
        if !cursor.is_gap() && cursor.peek() != Some(',') {
            return Err(cursor.expected("a space or comma after the action"));
        }
        if actions.contains(&action) {
            return Err(cursor.wrong(start, "this action is given twice"));
        }
        let second = |other: &Action| matches!(other, Action::Return(_));
        if second(&action) && actions.iter().any(second) {
            return Err(cursor.wrong(start, "a function returns only one value"));
        }
        actions.push(action);
        separator(cursor)?;
    }
    Ok(actions)
}

/// Skips spaces, or a comma with or without spaces, if more follows.
pub(super) fn separator(cursor: &mut Cursor) -> Result<()> {
    cursor.spaces();
    if cursor.eat(",") {
        cursor.spaces();
        if cursor.is_end() {
            return Err(cursor.expected("an action after the comma"));
        }
    }
    Ok(())
}

fn action(cursor: &mut Cursor, at: At, args: &mut Vec<FetchArg>) -> Result<Action> {
    let start = cursor.at;
    let word = cursor.word();
    match word {
        "print" => Ok(Action::Print),
        "count" => Ok(Action::Count),
        "stacktrace" => Ok(Action::StackTrace),
        "traceon" => Ok(Action::TraceOn),
        "traceoff" => Ok(Action::TraceOff),
        "snapshot" => snapshot(cursor),
        "enable" => {
            parameter(cursor, "the name of a probe")?;
            Ok(Action::Enable(probe_name(cursor)?))
        }
        "disable" => {
            parameter(cursor, "the name of a probe")?;
            Ok(Action::Disable(probe_name(cursor)?))
        }
        "return" => returned(cursor, start, at),
        "hist" => histogram(cursor, args),
        "if" => Err(cursor.wrong(start, "the condition comes before the actions")),
        "" if matches!(cursor.peek(), Some('%' | '$' | '+' | '-' | '@' | '\\')) => Err(cursor
            .expected("an action")
            .hint("arguments come before the condition and the actions, separated by spaces")),
        "" => Err(cursor.expected("an action").hint(all())),
        word => {
            let error = cursor.wrong(start, format!("there is no action {word}"));
            Err(match meant(word) {
                Some(near) => error.hint(format!("did you mean {near}?")),
                None => error.hint(all()),
            })
        }
    }
}

fn all() -> String {
    let mut all = String::from("actions are");
    for (action, _) in ACTIONS {
        all.push(' ');
        all.push_str(action);
    }
    all
}

/// Skips what separates an action from its parameter: a colon, or spaces.
fn parameter(cursor: &mut Cursor, expected: &str) -> Result<()> {
    if cursor.eat(":") || cursor.spaces() {
        return Ok(());
    }
    Err(cursor.expected(&format!(": and {expected}")))
}

fn probe_name(cursor: &mut Cursor) -> Result<ProbeName> {
    let name = cursor.identifier("the name of a probe")?.to_string();
    if !cursor.eat("/") {
        return Ok(ProbeName { group: None, name });
    }
    let group = Some(name);
    let name = cursor.identifier("the name of a probe")?.to_string();
    Ok(ProbeName { group, name })
}

fn snapshot(cursor: &mut Cursor) -> Result<Action> {
    let what = "the bytes of a snapshot";
    let most = u64::from(MAX_SNAPSHOT_SIZE);
    // The limit was MAX_SNAPSHOT_SIZE.
    let bytes = |cursor: &mut Cursor| {
        let bytes = cursor.limited("a number of bytes", what, 1, most)?;
        Ok(Action::Snapshot(bytes as u32))
    };
    if cursor.eat(":") {
        return bytes(cursor);
    }
    let mut ahead = *cursor;
    ahead.spaces();
    if ahead.word() != "of" {
        return Ok(Action::Snapshot(SNAPSHOT_SIZE));
    }
    ahead.spaces();
    *cursor = ahead;
    let action = bytes(cursor)?;
    cursor.spaces();
    match cursor.peek_word() {
        "bytes" | "byte" => {
            cursor.word();
            Ok(action)
        }
        _ => Err(cursor.expected("the word bytes after the number")),
    }
}

fn returned(cursor: &mut Cursor, start: usize, at: At) -> Result<Action> {
    parameter(cursor, "a number")?;
    let value = cursor.signed("the number to return")?;
    if at.kind == ProbeKind::Return {
        let message = "an action cannot replace the value of a function that has ended";
        let hint = "put an entry probe with return on the function";
        return Err(cursor.wrong(start, message).hint(hint));
    }
    if at.after {
        let message = "an action can only leave a function that has not begun";
        return Err(cursor
            .wrong(start, message)
            .hint("put the probe on the function, without post"));
    }
    if !at.place.may_begin_function() {
        let message = "an action can only leave a function that has not begun";
        let hint = "put the probe on the function, without offset";
        return Err(cursor.wrong(start, message).hint(hint));
    }
    Ok(Action::Return(value))
}

/// The fields of a histogram, and their other names.
const FIELDS: [(&str, &str); 7] = [
    ("keys", "keys"),
    ("key", "keys"),
    ("vals", "vals"),
    ("val", "vals"),
    ("values", "vals"),
    ("sort", "sort"),
    ("size", "size"),
];

fn histogram(cursor: &mut Cursor, args: &mut Vec<FetchArg>) -> Result<Action> {
    let start = cursor.at;
    let mut seen: Vec<&str> = Vec::new();
    let mut keys: Vec<HistKey> = Vec::new();
    let mut values: Vec<usize> = Vec::new();
    let mut size = HIST_SIZE;
    // The positions of the sort orders. They may refer to fields that come later.
    let mut sort_at = None;
    while cursor.eat(":") {
        let at = cursor.at;
        let word = cursor.word();
        let Some(&(_, field)) = FIELDS.iter().find(|(name, _)| *name == word) else {
            let error = match word {
                "" => cursor.expected("keys=, vals=, sort= or size="),
                _ => cursor.wrong(at, format!("a histogram has no {word}")),
            };
            return Err(error.suggest(word, FIELDS.map(|(_, field)| field)));
        };
        if seen.contains(&field) {
            return Err(cursor.wrong(at, format!("{field} is given twice")));
        }
        seen.push(field);
        cursor.need("=", &format!("= after {word}"))?;
        match field {
            "keys" => list(cursor, |cursor| key(cursor, args, &mut keys))?,
            "vals" => list(cursor, |cursor| value(cursor, args, &mut values))?,
            "sort" => {
                sort_at = Some(*cursor);
                list(cursor, skip_order)?;
            }
            _ => {
                let most = u64::from(MAX_HIST_SIZE);
                let what = "the size of a histogram";
                // The limit was MAX_HIST_SIZE.
                size = cursor.limited("a number of entries", what, 1, most)? as u32;
            }
        }
    }
    if keys.is_empty() {
        let error = super::ParseError::expected(cursor.text, start, ":keys= and what to count by");
        return Err(error.hint("hist:keys=NAME"));
    }
    let mut sort: Vec<HistSort> = Vec::new();
    if let Some(mut cursor) = sort_at {
        list(&mut cursor, |cursor| {
            order(cursor, args, &keys, &values, &mut sort)
        })?;
    }
    Ok(Action::Hist(Histogram {
        keys,
        values,
        sort,
        size,
    }))
}

/// Calls `one` for one or more items separated by commas. A comma followed by a space ends the action.
fn list(cursor: &mut Cursor, mut one: impl FnMut(&mut Cursor) -> Result<()>) -> Result<()> {
    loop {
        one(cursor)?;
        let mut ahead = *cursor;
        if !ahead.eat(",") || ahead.is_gap() {
            return Ok(());
        }
        *cursor = ahead;
    }
}

fn key(cursor: &mut Cursor, args: &mut Vec<FetchArg>, keys: &mut Vec<HistKey>) -> Result<()> {
    let at = cursor.at;
    let word = cursor.identifier("the name of an argument, pid, tid, cpu or comm")?;
    let (value, class) =
        named_or_brought(cursor, word, args).ok_or_else(|| unknown(cursor, at, word, args))?;
    if class == Class::Array {
        return Err(cursor.wrong(at, format!("{word} is an array and cannot be a key")));
    }
    let mut bucket = Bucket::Each;
    if cursor.eat(".") {
        let modifier_at = cursor.at;
        bucket = match cursor.word() {
            "log2" => Bucket::Log2,
            "buckets" => {
                cursor.need("=", "= and the width of the buckets")?;
                let width = "the width of a bucket";
                Bucket::Linear(cursor.limited(width, width, 1, u64::MAX)?)
            }
            _ => {
                let error =
                    super::ParseError::expected(cursor.text, modifier_at, "log2 or buckets=WIDTH");
                return Err(error);
            }
        };
        if class == Class::Text {
            return Err(cursor.wrong(at, format!("{word} is a text; buckets are for numbers")));
        }
    }
    if keys.iter().any(|key| key.value == value) {
        return Err(cursor.wrong(at, format!("{word} is given twice")));
    }
    if keys.len() == MAX_KEYS {
        return Err(cursor.wrong(at, format!("a histogram has at most {MAX_KEYS} keys")));
    }
    keys.push(HistKey { value, bucket });
    Ok(())
}

fn value(cursor: &mut Cursor, args: &mut Vec<FetchArg>, values: &mut Vec<usize>) -> Result<()> {
    let at = cursor.at;
    let word = cursor.identifier("the name of an argument")?;
    if word == "hitcount" && args.iter().all(|arg| arg.name != word) {
        // Hits are always counted.
        return Ok(());
    }
    let index = match named_or_brought(cursor, word, args) {
        Some((Expr::Arg(index), _)) => index,
        Some(_) => {
            return Err(cursor.wrong(at, format!("{word} cannot be summed up; it can be a key")));
        }
        None => return Err(unknown(cursor, at, word, args)),
    };
    if !matches!(class_of(&args[index]), Class::Number | Class::Unknown) {
        return Err(cursor.wrong(
            at,
            format!("{word} is not a number and cannot be summed up"),
        ));
    }
    if values.contains(&index) {
        return Err(cursor.wrong(at, format!("{word} is given twice")));
    }
    values.push(index);
    Ok(())
}

fn skip_order(cursor: &mut Cursor) -> Result<()> {
    cursor.identifier("a key, a value or hitcount")?;
    if cursor.eat(".") {
        let at = cursor.at;
        let word = cursor.word();
        if !matches!(word, "ascending" | "descending") {
            let error = super::ParseError::expected(cursor.text, at, "ascending or descending");
            return Err(error);
        }
    }
    Ok(())
}

fn order(
    cursor: &mut Cursor,
    args: &[FetchArg],
    keys: &[HistKey],
    values: &[usize],
    sort: &mut Vec<HistSort>,
) -> Result<()> {
    let at = cursor.at;
    let word = cursor.word();
    let key =
        named(word, args).and_then(|(value, _)| keys.iter().position(|key| key.value == value));
    let value = (values.iter()).position(|&value| args[value].name == word);
    let by = match (key, value) {
        (Some(key), _) => SortBy::Key(key),
        (None, Some(value)) => SortBy::Value(value),
        (None, None) if word == "hitcount" => SortBy::Hits,
        (None, None) => {
            let message = format!("{word} is not a key or value of this histogram");
            return Err(cursor.wrong(at, message));
        }
    };
    if sort.iter().any(|other| other.by == by) {
        return Err(cursor.wrong(at, format!("{word} is given twice")));
    }
    let descending = cursor.eat(".descending");
    if !descending {
        cursor.eat(".ascending");
    }
    sort.push(HistSort { by, descending });
    Ok(())
}
