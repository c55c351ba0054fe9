//! `hodo keys`: lists the static keys of a file or a process, and switches those of a process.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use hodo_record::{KeyState, ListedKey};
use serde_json::{Value, json};

use crate::args::{KeysAction, KeysArgs};
use crate::output::with_output;

/// `hodo keys`.
pub fn keys(args: &KeysArgs) -> Result<ExitCode> {
    let keys = match (args.pid, args.action) {
        (Some(pid), KeysAction::List) => hodo_record::list_keys_of(pid, &patterns(&args.words)?)?,
        (Some(pid), action) => {
            let on = action == KeysAction::Enable;
            hodo_record::switch_keys(pid, &patterns(&args.words)?, on)?
        }
        (None, _) => {
            let (file, words) = (args.words.split_first()).context("no file is named")?;
            hodo_record::list_keys(file, &patterns(words)?)?
        }
    };
    with_output(args.screen.no_pager, |out| {
        if args.json {
            let all: Value = keys.iter().map(as_json).collect();
            serde_json::to_writer_pretty(&mut *out, &all)?;
            writeln!(out)?;
            return Ok(());
        }
        match args.action {
            KeysAction::List => list(&keys, out),
            KeysAction::Enable | KeysAction::Disable => switched(&keys, out),
        }
    })?;
    if args.action == KeysAction::Disable {
        tell_of_users(&keys);
    }
    Ok(ExitCode::SUCCESS)
}

fn patterns(words: &[OsString]) -> Result<Vec<String>> {
    let text = |word: &OsString| word.to_str().map(str::to_owned);
    let texts: Option<Vec<String>> = words.iter().map(text).collect();
    texts.context("a pattern of names is not valid UTF-8")
}

fn on(enabled: bool) -> &'static str {
    if enabled { "on" } else { "off" }
}

fn kind(key: &ListedKey) -> &'static str {
    match key.is_tracepoint {
        true => "tracepoint",
        false => "key",
    }
}

fn as_json(key: &ListedKey) -> Value {
    let mut value = json!({
        "name": key.name, "kind": kind(key), "initial": key.initial, "branches": key.branches,
    });
    if let Some(index) = key.index {
        value["index"] = index.into();
    }
    if let Some(KeyState {
        enabled,
        before,
        users,
    }) = key.state
    {
        value["enabled"] = enabled.into();
        value["before"] = before.into();
        value["users"] = users.into();
    }
    value
}

fn list(keys: &[ListedKey], out: &mut dyn Write) -> Result<()> {
    let states = keys.iter().any(|key| key.state.is_some());
    let title = if states { "STATE   USERS  " } else { "" };
    writeln!(out, "# {title}INITIAL  BRANCHES  KIND        NAME")?;
    for key in keys {
        write!(out, "  ")?;
        if let Some(state) = key.state {
            write!(out, "{:<5}  {:>6}  ", on(state.enabled), state.users)?;
        }
        let (initial, branches) = (on(key.initial), key.branches);
        writeln!(out, "{initial:<7}  {branches:>8}  {:<10}  {key}", kind(key))?;
    }
    Ok(())
}

fn switched(keys: &[ListedKey], out: &mut dyn Write) -> Result<()> {
    writeln!(out, "# BEFORE  NOW  BRANCHES  NAME")?;
    for key in keys {
        let Some(state) = key.state else { continue };
        let (before, now) = (on(state.before), on(state.enabled));
        writeln!(out, "  {before:<6}  {now:<3}  {:>8}  {key}", key.branches)?;
    }
    Ok(())
}

/// Reports keys that stay on although they were switched off.
fn tell_of_users(keys: &[ListedKey]) {
    for key in keys {
        match key.state {
            Some(KeyState { users: 0, .. }) | None => {}
            Some(KeyState { users: 1, .. }) => {
                warn_user!("hodo: {key} stays on while it has a user");
            }
            Some(KeyState { users, .. }) => {
                warn_user!("hodo: {key} stays on while it has {users} users");
            }
        }
    }
}
