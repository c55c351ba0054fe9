//! Events by name: the tracepoints and other USDT probes of all mapped files, found by patterns of group and name. Each
//! match gets a definition of its own as soon as its file is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use hodo_abi::Isa;
use hodo_probe_syntax::{
    BinaryOp, Definition, Expr, FetchArg, Location, ProbeKind, SYSCALLS, Scalar, Source, Type,
};
use hodo_symbols::{Key, Tracepoint, Usdt};
use regex::Regex;

use super::Probes;
use super::arch::{self, Machine};
use super::kernel_calls::expanded;
use super::usdt::number_of;
use hodo_module::Image;
use hodo_module::glob::glob;

/// A pattern of events.
#[derive(Debug)]
pub struct Pattern {
    text: String,
    group: Regex,
    name: Regex,
}

impl Pattern {
    /// Reads `GROUP:NAME`, or `*`.
    ///
    /// # Errors
    /// If it is neither.
    pub fn new(text: &str) -> Result<Self> {
        let looks_defined = text.contains(char::is_whitespace)
            || text.contains(['/', '%', '+'])
            || text.starts_with("p:")
            || text.starts_with("r:");
        if looks_defined {
            bail!("'{text}' is a probe definition, not a pattern of events: use -e");
        }
        let (group, name) = match text.split_once(':') {
            Some((group, name)) if !group.is_empty() && !name.is_empty() && !name.contains(':') => {
                (group, name)
            }
            None if text == "*" => ("*", "*"),
            _ => bail!(
                "'{text}' is not a pattern of events: write GROUP:NAME, where * stands for any text, or * for all; `hodo list-events FILE` lists those of a file"
            ),
        };
        Ok(Self {
            text: text.to_owned(),
            group: glob(group)?,
            name: glob(name)?,
        })
    }

    /// Returns whether it means this event.
    pub fn fits(&self, group: &str, name: &str) -> bool {
        self.group.is_match(group) && self.name.is_match(name)
    }
}

/// An event of a file: all its USDT probes of one name.
#[derive(Debug, Clone)]
pub struct Event {
    /// Its group, or provider.
    pub group: String,
    /// Its name.
    pub name: String,
    /// Its probes, in the order of the file's notes. At least one.
    pub probes: Vec<Usdt>,
    /// The processor of its file.
    machine: &'static Machine,
}

impl Event {
    /// The names and types of its arguments, at its first place.
    #[must_use]
    pub fn arguments(&self) -> Vec<(String, String)> {
        let Some(first) = self.probes.first() else {
            return Vec::new();
        };
        if let Some(tracepoint) = &first.tracepoint {
            let arguments = tracepoint.arguments.iter();
            return arguments
                .map(|argument| (argument.name.clone(), argument.ty.clone()))
                .collect();
        }
        // Where data of a symbol are does not change the type.
        let arguments = super::usdt::arguments(&first.arguments, self.machine, &|_| Some(0));
        let arguments = arguments.into_iter().enumerate();
        arguments
            .map(|(index, argument)| {
                let ty = argument.map(|(_, ty)| ty.to_string());
                (
                    format!("arg{}", index + 1),
                    ty.unwrap_or_else(|| "?".to_owned()),
                )
            })
            .collect()
    }

    /// Whether it is a tracepoint, which a static key switches on.
    pub fn is_tracepoint(&self) -> bool {
        self.probes.iter().any(|probe| probe.tracepoint.is_some())
    }
}

/// The events of a file, by group and name.
#[must_use]
pub fn events(bytes: &[u8]) -> Vec<Event> {
    let mut events: BTreeMap<(String, String), Vec<Usdt>> = BTreeMap::new();
    for probe in hodo_symbols::usdt(bytes) {
        let key = (probe.provider.clone(), probe.name.clone());
        events.entry(key).or_default().push(probe);
    }
    let machine = arch::of(hodo_symbols::isa_of(bytes).unwrap_or(Isa::NATIVE));
    let event = |((group, name), probes)| Event {
        group,
        name,
        probes,
        machine,
    };
    events.into_iter().map(event).collect()
}

/// How an argument of a tracepoint is fetched from where its USDT probe has it.
pub(super) fn fetched(source: Source, own: Type, ty: &str) -> (Source, Type) {
    let scalar = match ty {
        "u8" | "bool" => Scalar::U(8),
        "u16" => Scalar::U(16),
        "u32" | "char" => Scalar::U(32),
        "u64" => Scalar::U(64),
        "i8" => Scalar::S(8),
        "i16" => Scalar::S(16),
        "i32" => Scalar::S(32),
        "i64" => Scalar::S(64),
        // The language has no such numbers.
        "f32" => Scalar::X(32),
        "f64" | "ptr" => Scalar::X(64),
        "str" => {
            let address = Box::new(source);
            let ty = Type::Scalar(Scalar::String);
            return (Source::Memory { offset: 0, address }, ty);
        }
        _ => return (source, own),
    };
    (source, Type::Scalar(scalar))
}

/// As what the arguments of a definition are shown, where no type of the language says it: those of a tracepoint that
/// the user has given no other type. `resolved` is the definition with what they are at one place.
pub(super) fn shown(
    definition: &Definition,
    resolved: &Definition,
    tracepoint: &Tracepoint,
) -> Vec<Option<&'static str>> {
    let type_of = |index: usize| match &*tracepoint.arguments.get(index)?.ty {
        "bool" => Some("bool"),
        "char" => Some("char32"),
        "f32" => Some("f32"),
        "f64" => Some("f64"),
        _ => None,
    };
    let number = |name: &str| {
        let mut arguments = tracepoint.arguments.iter();
        let number = || number_of(name, "$arg").or_else(|| number_of(name, "arg"));
        arguments
            .position(|argument| argument.name == name)
            .or_else(number)
    };
    let named = |index: usize| match definition.args.get(index) {
        None if definition.args.is_empty() => Some(index),
        Some(FetchArg {
            source: Source::Variable(name),
            ty: None,
            ..
        }) => number(name),
        _ => None,
    };
    (0..resolved.args.len())
        .map(|index| type_of(named(index)?))
        .collect()
}

/// The patterns of a recording, and what they have found.
#[derive(Debug, Default)]
pub(super) struct Events {
    patterns: Vec<Pattern>,
    /// The definitions that were made for them.
    made: BTreeSet<usize>,
    /// The patterns that have matched something, by index.
    matched: BTreeSet<usize>,
}

impl Events {
    /// # Errors
    /// If a pattern is none.
    pub fn new(patterns: &[String]) -> Result<Self> {
        let patterns = patterns.iter().map(|text| Pattern::new(text));
        Ok(Self {
            patterns: patterns
                .collect::<Result<_>>()
                .context("the option --event")?,
            ..Self::default()
        })
    }

    /// The events of a file that are wanted.
    fn wanted(&self, bytes: &[u8]) -> Vec<Event> {
        let mut found = match self.patterns.is_empty() {
            true => Vec::new(),
            false => events(bytes),
        };
        found.retain(|event| self.indices(event).next().is_some());
        found
    }

    fn indices(&self, event: &Event) -> impl Iterator<Item = usize> {
        let patterns = self.patterns.iter().enumerate();
        let fits = patterns.filter(|(_, pattern)| pattern.fits(&event.group, &event.name));
        fits.map(|(index, _)| index)
    }

    /// Whether this definition was made for an event.
    pub fn has_made(&self, definition: usize) -> bool {
        self.made.contains(&definition)
    }
}

/// What nobody wrote: the definition of an event of a file.
fn definition(event: &Event, path: &Path) -> Option<Definition> {
    Some(Definition {
        kind: ProbeKind::Entry,
        group: event.group.clone(),
        name: event.name.clone(),
        named: true,
        path: path.to_str()?.to_owned(),
        place: Location::Usdt {
            provider: event.group.clone(),
            name: event.name.clone(),
        },
        after: false,
        args: Vec::new(),
        condition: None,
        actions: Vec::new(),
    })
}

impl Probes {
    /// Events are looked for in every file.
    ///
    /// # Errors
    /// If a pattern is none.
    pub fn find_events(&mut self, patterns: &[String]) -> Result<()> {
        self.events = Events::new(patterns)?;
        for (index, text) in patterns.iter().enumerate() {
            if text
                .split_once(':')
                .is_none_or(|(group, _)| group != SYSCALLS)
            {
                continue;
            }
            self.find_call_events(text).context("the option --event")?;
            self.events.matched.insert(index);
        }
        Ok(())
    }

    /// Probes act in these threads only.
    pub fn only_threads(&mut self, threads: &[i32]) {
        let is_one = |thread: &i32| {
            let number = Expr::Number(u64::from(thread.unsigned_abs()));
            Expr::Binary(BinaryOp::Equal, Box::new(Expr::Tid), Box::new(number))
        };
        let or = |left, right| Expr::Binary(BinaryOp::Or, Box::new(left), Box::new(right));
        let Some(chosen) = threads.iter().map(is_one).reduce(or) else {
            return;
        };
        for index in 0..self.definitions.len() {
            if self.follows_names(index) {
                continue;
            }
            let condition = &mut self.definitions[index].condition;
            *condition = Some(match condition.take() {
                None => chosen.clone(),
                Some(own) => Expr::Binary(BinaryOp::And, Box::new(chosen.clone()), Box::new(own)),
            });
        }
    }

    /// Makes definitions for the events of system calls that a pattern fits.
    fn find_call_events(&mut self, text: &str) -> Result<()> {
        let machine = arch::NATIVE;
        let definition = hodo_probe_syntax::parse_for(machine.names, text)
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        for (event, definition) in expanded(machine, &definition)? {
            let index = self.definitions.len();
            self.kernel_calls.add(index, &definition, event);
            self.events.made.insert(index);
            self.texts
                .push(format!("{}:{}", definition.group, definition.name));
            self.add(definition);
        }
        Ok(())
    }

    /// Whether tracepoints may be recorded: files with static keys matter then.
    pub fn want_keys(&self) -> bool {
        let usdt = |definition: &Definition| matches!(definition.place, Location::Usdt { .. });
        !self.events.patterns.is_empty() || self.definitions.iter().any(usdt)
    }

    /// Whether the tracepoints of a static key in the file of this path are recorded.
    pub fn want_key(&self, key: &Key, path: &Path) -> bool {
        let Some((group, name)) = key.name.split_once(':').filter(|_| key.tracepoint) else {
            return false;
        };
        let defined = |definition: &Definition| match &definition.place {
            Location::Usdt {
                provider,
                name: own,
            } => (&**provider, &**own) == (group, name) && self.is_in(definition, path),
            _ => false,
        };
        let mut patterns = self.events.patterns.iter();
        patterns.any(|pattern| pattern.fits(group, name)) || self.definitions.iter().any(defined)
    }

    /// Whether a file has events that are wanted.
    pub(super) fn has_events(&self, image: &Image) -> bool {
        !self.events.wanted(&image.bytes).is_empty()
    }

    /// Makes a definition for each event of a file that is wanted and has none.
    pub(super) fn add_events(&mut self, image: &Image) {
        for event in self.events.wanted(&image.bytes) {
            let indices: Vec<usize> = self.events.indices(&event).collect();
            self.events.matched.extend(indices);
            let Some(definition) = definition(&event, &image.path) else {
                continue;
            };
            // Of a file that was written anew it is known already.
            let mut made = self.events.made.iter();
            if made.any(|index| self.definitions[*index] == definition) {
                continue;
            }
            self.events.made.insert(self.definitions.len());
            self.texts.push(format!("{}:{}", event.group, event.name));
            self.add(definition);
        }
    }

    /// The patterns that match no event of these files, as on the command line.
    pub fn useless_patterns(&self, files: impl Iterator<Item = Vec<u8>>) -> Vec<String> {
        // Those of system calls are in no file.
        let patterns = self.events.patterns.iter().enumerate();
        let open = patterns.filter(|(index, _)| !self.events.matched.contains(index));
        let mut open: Vec<&Pattern> = open.map(|(_, pattern)| pattern).collect();
        // The files are not even read if nothing is looked for.
        let mut files = files;
        while !open.is_empty()
            && let Some(bytes) = files.next()
        {
            let events = events(&bytes);
            open.retain(|pattern| !events.iter().any(|e| pattern.fits(&e.group, &e.name)));
        }
        let texts = open.iter();
        texts
            .map(|pattern| format!("--event '{}'", pattern.text))
            .collect()
    }

    /// The patterns that have matched nothing in the whole recording.
    pub(super) fn unmatched(&self) -> impl Iterator<Item = &str> {
        let patterns = self.events.patterns.iter().enumerate();
        let none = patterns.filter(|(index, _)| !self.events.matched.contains(index));
        none.map(|(_, pattern)| pattern.text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_a_group_and_a_name() {
        let fits = |text: &str, group, name| Pattern::new(text).expect(text).fits(group, name);
        assert!(fits("net:*", "net", "request") && !fits("net:*", "network", "request"));
        assert!(fits("*:req*", "net", "request") && !fits("*:req*", "net", "done"));
        assert!(fits("n?t:[a-r]equest", "net", "request"));
        assert!(fits("*", "net", "request"));
        let error = |text: &str| Pattern::new(text).expect_err(text).to_string();
        for text in ["net", ":", "net:", ":x", "a:b:c", ""] {
            let begin = format!("'{text}' is not a pattern of events: write GROUP:NAME");
            assert!(error(text).starts_with(&begin), "{}", error(text));
        }
        for text in [
            "p:open libc.so.6:openat",
            "./a:main",
            "a:%b:c",
            "a:main+4",
            "p:x",
        ] {
            let end = "is a probe definition, not a pattern of events: use -e";
            assert!(error(text).ends_with(end), "{}", error(text));
        }
        assert!(Pattern::new("net:[").is_err());
    }
}
