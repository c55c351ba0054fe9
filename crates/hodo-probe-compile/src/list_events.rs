//! Lists the events of a file, or of a process with their states there.

use hodo_module::mapped;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::processes;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use hodo_symbols::Key;

use super::dry_run::found;
use super::events::{Event, Pattern, events};
use super::kernel_calls::{CallEvent, all};
use hodo_abi::Isa;
use hodo_module::Image;
use hodo_module::image::canonical;
use hodo_probe_syntax::SYSCALLS;
use hodo_ptrace::Memory;
use hodo_ptrace::maps;

/// An event of a file.
#[derive(Debug, Clone)]
pub struct ListedEvent {
    /// The file.
    pub path: PathBuf,
    /// Its group, or provider.
    pub group: String,
    /// Its name.
    pub name: String,
    /// Whether it is a tracepoint, which a static key switches on; else another USDT probe.
    pub is_tracepoint: bool,
    /// Link-time addresses of its instructions.
    pub places: Vec<u64>,
    /// Names and types of its arguments.
    pub arguments: Vec<(String, String)>,
    /// Of a process: whether it is on. A tracepoint is if one of its keys is; another probe if somebody waits for it.
    pub enabled: Option<bool>,
}

impl ListedEvent {
    fn new(event: &Event, path: &Path, enabled: Option<bool>) -> Self {
        Self {
            path: path.to_owned(),
            is_tracepoint: event.is_tracepoint(),
            places: event.probes.iter().map(|probe| probe.addr).collect(),
            arguments: event.arguments(),
            group: event.group.clone(),
            name: event.name.clone(),
            enabled,
        }
    }
}

/// The events of system calls that fit one of the patterns, on an instruction set.
///
/// # Errors
/// If a pattern is malformed.
pub fn list_call_events(isa: Isa, texts: &[String]) -> Result<Vec<CallEvent>> {
    let patterns = patterns(texts)?;
    let fits = |event: &CallEvent| {
        let name = event.name();
        patterns.iter().any(|pattern| pattern.fits(SYSCALLS, &name))
    };
    Ok(all(isa).filter(fits).collect())
}

fn patterns(texts: &[String]) -> Result<Vec<Pattern>> {
    texts.iter().map(|text| Pattern::new(text)).collect()
}

/// The events of a file that fit one of the patterns; all without any.
fn fitting(image: &Image, patterns: &[Pattern]) -> Vec<Event> {
    let mut events = events(&image.bytes);
    events.retain(|event| {
        let fits = |pattern: &Pattern| pattern.fits(&event.group, &event.name);
        patterns.is_empty() || patterns.iter().any(fits)
    });
    events
}

/// The events of a program or library, and its name.
///
/// # Errors
/// If there is no such file, it is no program or library, or a pattern is none.
pub fn list_events(file: &OsStr, texts: &[String]) -> Result<(String, Vec<ListedEvent>)> {
    let patterns = patterns(texts)?;
    let path = canonical(&found(file)?);
    let image = Image::read(&path, path.clone())?;
    let events = fitting(&image, &patterns);
    let listed = events
        .iter()
        .map(|event| ListedEvent::new(event, &path, None));
    Ok((path.display().to_string(), listed.collect()))
}

/// The events of all files of a process, and what the process is called.
///
/// # Errors
/// If there is no such process, its memory cannot be read, or a pattern is malformed.
pub fn list_events_of(pid: i32, texts: &[String]) -> Result<(String, Vec<ListedEvent>)> {
    let patterns = patterns(texts)?;
    processes::readable(pid)?;
    let memory = Memory::open(pid)?;
    let maps = maps::read(pid)?;
    let mut seen = HashSet::new();
    let mut listed = Vec::new();
    for mapping in maps.iter().filter(|m| m.executable && m.inode != 0) {
        let Ok((_, image)) = mapped::of_mapping(pid, mapping) else {
            continue;
        };
        let Some(bias) = image.bias(mapping.offset, mapping.start) else {
            continue;
        };
        if !seen.insert((mapping.path.clone(), bias)) {
            continue;
        }
        let keys = hodo_symbols::keys(&image.bytes).unwrap_or_default().keys;
        for event in fitting(&image, &patterns) {
            let enabled = is_enabled(&event, &image, bias, &memory, &keys);
            listed.push(ListedEvent::new(&event, &mapping.path, Some(enabled)));
        }
    }
    Ok((format!("process {}", processes::named(pid)), listed))
}

fn is_enabled(event: &Event, image: &Image, bias: u64, memory: &Memory, keys: &[Key]) -> bool {
    let number = |at: u64, bytes: &mut [u8]| {
        memory
            .read(TargetAddr(at.wrapping_add(bias)), bytes)
            .is_ok()
            && bytes.iter().any(|byte| *byte != 0)
    };
    if event.is_tracepoint() {
        let name = format!("{}:{}", event.group, event.name);
        let mut keys = keys.iter().filter(|key| key.tracepoint && key.name == name);
        return keys.any(|key| number(key.addr, &mut [0; 4]));
    }
    let mut probes = event.probes.iter();
    probes.any(|probe| match probe.semaphore {
        Some(semaphore) => number(semaphore, &mut [0; 2]),
        // Somebody has put a breakpoint or a jump there.
        None => {
            let mut now = [0];
            let original = image.at(probe.addr..probe.addr + 1);
            let read = memory.read(TargetAddr(probe.addr.wrapping_add(bias)), &mut now);
            read.is_ok() && original.is_some_and(|original| original != now)
        }
    })
}
