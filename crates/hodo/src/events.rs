//! `hodo list-events`: the tracepoints and other USDT probes of a file, or of a process.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use hodo_probe_compile::ListedEvent;
use serde_json::{Value, json};

use crate::args::ListEventsArgs;
use crate::output::with_output;

/// `hodo list-events`.
pub fn list(args: &ListEventsArgs) -> Result<ExitCode> {
    let (file, words) = match (args.pid, args.words.split_first()) {
        (None, Some((file, words))) => (Some(file), words),
        _ => (None, &args.words[..]),
    };
    let mut patterns = args.events.clone();
    for word in words {
        let text = word
            .to_str()
            .context("a pattern of events is not valid UTF-8")?;
        patterns.push(text.to_owned());
    }
    let (whose, events) = match (args.pid, file) {
        (Some(pid), _) => hodo_probe_compile::list_events_of(pid, &patterns)?,
        (None, Some(file)) => hodo_probe_compile::list_events(file, &patterns)?,
        (None, None) => bail!("name a file, or a process with -p"),
    };
    if events.is_empty() {
        match patterns[..] {
            [] => bail!("{whose} has no events: neither tracepoints nor other USDT probes"),
            _ => bail!("{whose} has no event that matches: {}", patterns.join(", ")),
        }
    }
    with_output(args.screen.no_pager, |out| {
        if args.json {
            let all: Value = events.iter().map(as_json).collect();
            serde_json::to_writer_pretty(&mut *out, &all)?;
            writeln!(out)?;
            return Ok(());
        }
        text(&events, args.pid.is_some(), out)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn as_json(event: &ListedEvent) -> Value {
    let arguments = event.arguments.iter();
    let arguments: Value = arguments
        .map(|(name, ty)| json!({"name": name, "type": ty}))
        .collect();
    let mut value = json!({
        "path": event.path.display().to_string(), "group": event.group, "name": event.name,
        "kind": kind(event), "arguments": arguments, "addrs": event.places,
    });
    if let Some(enabled) = event.enabled {
        value["enabled"] = enabled.into();
    }
    value
}

fn kind(event: &ListedEvent) -> &'static str {
    match event.is_tracepoint {
        true => "tracepoint",
        false => "usdt",
    }
}

fn text(events: &[ListedEvent], states: bool, out: &mut dyn Write) -> Result<()> {
    let state = |event: &ListedEvent| match event.enabled {
        Some(true) => "on   ",
        Some(false) => "off  ",
        None => "     ",
    };
    let title = if states { "STATE  " } else { "" };
    writeln!(out, "# {title}KIND        GROUP:NAME  ARGUMENTS")?;
    let mut path: Option<&Path> = None;
    for event in events {
        if states && path != Some(&event.path) {
            writeln!(out, "{}", event.path.display())?;
            path = Some(&event.path);
        }
        write!(out, "  ")?;
        if states {
            write!(out, "{}  ", state(event))?;
        }
        write!(out, "{:<10}  {}:{}", kind(event), event.group, event.name)?;
        for (index, (name, ty)) in event.arguments.iter().enumerate() {
            let space = if index == 0 { "  " } else { " " };
            write!(out, "{space}{name}:{ty}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
