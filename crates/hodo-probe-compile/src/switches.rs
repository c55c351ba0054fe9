//! Bytes of the events file that actions write and detours test: one for each probe that an action names, and one for
//! `traceon` and `traceoff`. They are shared by the whole recording.

use anyhow::{Result, bail};
use hodo_probe_syntax::{Action, Definition, ProbeName};
use hodo_trace::format::file_header::{SWITCHES, SWITCHES_END};

/// Which definitions have a byte.
#[derive(Debug, Default)]
pub(super) struct Switches {
    /// By definition.
    bytes: Vec<Option<u32>>,
    trace: bool,
}

impl Switches {
    /// # Errors
    /// If an action names no probe, or there are too many.
    pub(super) fn new(definitions: &[Definition]) -> Result<Self> {
        let mut switches = Self {
            bytes: vec![None; definitions.len()],
            trace: false,
        };
        let mut next = SWITCHES + 1;
        for action in definitions.iter().flat_map(|d| &d.actions) {
            let (verb, name) = match action {
                Action::Enable(name) => ("enable", name),
                Action::Disable(name) => ("disable", name),
                Action::TraceOn | Action::TraceOff => {
                    switches.trace = true;
                    continue;
                }
                _ => continue,
            };
            let named = meant(definitions, name);
            if named.is_empty() {
                let known: Vec<&str> = definitions.iter().map(|d| d.name.as_str()).collect();
                bail!(
                    "{verb} {}: no probe has this name; there is {}",
                    text(name),
                    known.join(", ")
                );
            }
            for index in named {
                let byte = &mut switches.bytes[index];
                if byte.is_none() {
                    if next == SWITCHES_END {
                        bail!(
                            "more than {} probes are switched on and off",
                            SWITCHES_END - SWITCHES - 1
                        );
                    }
                    *byte = Some(next as u32);
                    next += 1;
                }
            }
        }
        Ok(switches)
    }

    /// The byte of a definition.
    pub(super) fn of(&self, definition: usize) -> Option<u32> {
        // What an event was found for later is not switched.
        self.bytes.get(definition).copied().flatten()
    }

    /// The bytes of the definitions with a name.
    pub(super) fn named(&self, definitions: &[Definition], name: &ProbeName) -> Vec<u32> {
        let bytes = meant(definitions, name).into_iter();
        bytes.filter_map(|index| self.bytes[index]).collect()
    }

    /// The byte that says whether events are written, if some action changes it.
    pub(super) fn trace(&self) -> Option<u32> {
        self.trace.then_some(SWITCHES as u32)
    }
}

fn meant(definitions: &[Definition], name: &ProbeName) -> Vec<usize> {
    let fits = |d: &Definition| {
        d.name == name.name && name.group.as_ref().is_none_or(|group| *group == d.group)
    };
    let fitting = (0..definitions.len()).filter(|&index| fits(&definitions[index]));
    fitting.collect()
}

fn text(name: &ProbeName) -> String {
    match &name.group {
        Some(group) => format!("{group}/{}", name.name),
        None => name.name.clone(),
    }
}
