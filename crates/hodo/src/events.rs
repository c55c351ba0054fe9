//! `hodo list-events`: the tracepoints and other USDT probes of a file, or of a process.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use hodo_probe_compile::{CallEvent, ListedEvent, functions_of};
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
    if let Some(file) = file.and_then(|file| file.to_str())
        && file
            .split_once(':')
            .is_some_and(|(group, _)| group == "syscalls")
    {
        patterns.insert(0, file.to_owned());
        return list_calls(args, &patterns);
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

/// The events of system calls that fit one of the patterns.
fn list_calls(args: &ListEventsArgs, patterns: &[String]) -> Result<ExitCode> {
    let isa = hodo_abi::Isa::NATIVE;
    let events = hodo_probe_compile::list_call_events(isa, patterns)?;
    if events.is_empty() {
        bail!("no event of a system call matches: {}", patterns.join(", "));
    }
    with_output(args.screen.no_pager, |out| {
        if args.json {
            let all: Value = events
                .iter()
                .map(|event| call_as_json(event, isa))
                .collect();
            serde_json::to_writer_pretty(&mut *out, &all)?;
            writeln!(out)?;
            return Ok(());
        }
        writeln!(
            out,
            "# KIND        GROUP:NAME  ARGUMENTS  (OTHER FUNCTIONS OF LIBC THAT MAKE THE CALL)"
        )?;
        for event in &events {
            write!(out, "  {:<10}  syscalls:{}", "syscall", event.name())?;
            for (index, (name, ty)) in event.arguments(isa).iter().enumerate() {
                let space = if index == 0 { "  " } else { " " };
                write!(out, "{space}{name}:{ty}")?;
            }
            let functions: Vec<_> = functions_of(event.call.name).collect();
            if !functions.is_empty() {
                write!(out, "  ({})", functions.join(", "))?;
            }
            writeln!(out)?;
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

fn call_as_json(event: &CallEvent, isa: hodo_abi::Isa) -> Value {
    let arguments = event.arguments(isa).into_iter();
    let arguments: Value = arguments
        .map(|(name, ty)| json!({"name": name, "type": ty}))
        .collect();
    json!({
        "group": "syscalls", "name": event.name(), "kind": "syscall", "number": event.number,
        "arguments": arguments, "functions": functions_of(event.call.name).collect::<Vec<_>>(),
    })
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
