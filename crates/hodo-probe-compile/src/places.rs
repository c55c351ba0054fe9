//! From what a definition names to addresses in a file.

use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Result;
use hodo_isa::InstructionSet;
use hodo_isa::code::Flow;
use hodo_probe_syntax::{Definition, Location, Offset, Symbol};
use hodo_symbols::{Sieve, Style, Usdt, demangle, spellings};

use super::arch::reader;
use super::callers::{self, Callers};
use super::kernel_calls::is_of_calls;
use super::named::Named;
use super::resolvers;
use super::wanted::Found;
use hodo_module::Image;

/// Is this what the definition means by its path? A name without slash is that of a file in any directory, with or
/// without version, or of a program in PATH, which may be a link to a file with another name.
pub fn is_file(definition: &Definition, path: &Path) -> bool {
    let wanted = &definition.path;
    if is_of_calls(definition) {
        return false;
    }
    if wanted.contains('/') {
        let real = Path::new(wanted).canonicalize();
        return path == Path::new(wanted) || real.is_ok_and(|real| real == path);
    }
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.strip_prefix(wanted.as_str()))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
        || in_path(wanted).is_some_and(|program| program == path)
}

/// The file of a program in PATH.
fn in_path(name: &str) -> Option<PathBuf> {
    thread_local! {
        /// Each is asked for again for every file.
        static FOUND: RefCell<HashMap<String, Option<PathBuf>>> = RefCell::default();
    }
    FOUND.with_borrow_mut(|found| {
        let find = || {
            let path = std::env::var_os("PATH")?;
            let mut files = std::env::split_paths(&path).map(|place| place.join(name));
            files.find(|file| file.is_file())?.canonicalize().ok()
        };
        let known = found.entry(name.to_owned());
        known.or_insert_with(find).clone()
    })
}

/// The instructions of a function that may be executed: all but the padding that nothing leads to.
fn instructions(isa: &dyn InstructionSet, code: &[u8], addr: u64) -> Vec<u64> {
    let targets: HashSet<u64> = isa
        .sweep(code, addr)
        .filter_map(|insn| match insn.flow {
            Flow::Branch(to) | Flow::Jump(to) => Some(to),
            _ => None,
        })
        .collect();
    let mut found = Vec::new();
    let mut dead = false;
    for insn in isa.sweep(code, addr) {
        if insn.flow == Flow::Invalid {
            continue;
        }
        dead &= insn.padding && !targets.contains(&insn.addr);
        if !dead {
            found.push(insn.addr);
            dead = insn.flow.is_end();
        }
    }
    found
}

/// How many instructions the linkage tables of a file have.
pub(super) fn in_linkage_tables(image: &Image) -> usize {
    let tables = hodo_symbols::linkage_tables(&image.bytes);
    let code = |table: &Range<u64>| image.at(table.clone()).unwrap_or_default();
    tables
        .iter()
        .flat_map(|table| reader(image).sweep(code(table), table.start))
        .filter(|insn| !insn.padding && insn.flow != Flow::Invalid)
        .count()
}

/// The places that a definition names, by function. None if nothing fits.
pub(super) fn points(
    definition: &Definition,
    image: &Image,
    functions: &[Named],
) -> Result<Vec<Found>> {
    let mut points = Vec::new();
    if let Some(resolver) = resolvers::followed(definition, functions) {
        let found = resolvers::implementations(resolver, image, functions);
        if !found.is_empty() {
            let point = |addr| Found::one(addr, &resolver.name, 0);
            return Ok(found.into_iter().map(point).collect());
        }
    }
    match &definition.place {
        Location::Symbol { symbol, offset } => {
            let fits = fitting(symbol)?;
            let mut seen = std::collections::HashSet::new();
            let by_name = matches!(symbol, Symbol::Name(_));
            let meant = |function: &&Named| (by_name || !function.label) && fits(&function.name);
            for function in functions.iter().filter(meant) {
                // One place has one probe of a definition, under the first of its names.
                if !seen.insert(function.addr) {
                    continue;
                }
                match *offset {
                    Offset::Bytes(_) if function.part => {}
                    Offset::Bytes(offset) => {
                        points.push(Found::one(function.addr + offset, &function.name, offset));
                    }
                    Offset::EveryInstruction => {
                        let code = image.at(function.addr..function.end).unwrap_or_default();
                        points.push(Found {
                            symbol: function.name.as_str().into(),
                            start: function.addr,
                            addrs: instructions(reader(image), code, function.addr),
                        });
                    }
                }
            }
        }
        Location::FileOffset(offset) => {
            let segment = image
                .segments
                .iter()
                .find(|s| s.executable && (s.offset..s.offset + s.size).contains(offset));
            if let Some(segment) = segment {
                let addr = segment.addr + (offset - segment.offset);
                let (name, distance) = named(addr, functions);
                points.push(Found::one(addr, &name, distance));
            }
        }
        // It needs debugging information: see `lines`.
        Location::Line { .. } | Location::Usdt { .. } => {}
    }
    Ok(points)
}

/// The places of a line of the source.
///
/// # Errors
/// If there is no debugging information, or no such line in it.
pub(super) fn lines(
    image: &Image,
    file: &str,
    line: u32,
    functions: &[Named],
) -> Result<Vec<Found>> {
    let addrs = image
        .debug()
        .map_err(|error| anyhow::anyhow!("{error}"))?
        .line(file, line)?;
    let points = addrs.into_iter().map(|addr| {
        let (name, distance) = named(addr, functions);
        Found::one(addr, &name, distance)
    });
    Ok(points.collect())
}

/// The places of a USDT probe, with its notes. `callers` is for all probes of the file.
///
/// # Errors
/// If the file has none of this name.
pub(super) fn usdt(
    image: &Image,
    (provider, name): (&str, &str),
    functions: &[Named],
    callers: &OnceCell<Callers>,
) -> Result<Vec<(u64, String, u64, Usdt)>> {
    let all = hodo_symbols::usdt(&image.bytes);
    let path = image.path.display();
    if all.is_empty() {
        anyhow::bail!("{path} has no USDT probes");
    }
    let fits = |probe: &Usdt| probe.provider == provider && probe.name == name;
    let points: Vec<_> = (all.into_iter().filter(fits))
        .map(|probe| {
            let (mut function, mut distance) = named(probe.addr, functions);
            if probe.tracepoint.is_some() {
                let callers = callers.get_or_init(|| callers::callers(image, functions));
                if let Some(caller) = callers.get(&(probe.addr - distance)) {
                    (function, distance) = caller.clone();
                }
            }
            (probe.addr, function, distance, probe)
        })
        .collect();
    if points.is_empty() {
        anyhow::bail!(
            "{path} has no USDT probe {provider}:{name}; hodo probe --usdt lists those it has"
        );
    }
    Ok(points)
}

/// The function in which an address lies, and the distance from its beginning.
fn named(addr: u64, functions: &[Named]) -> (String, u64) {
    let mut at = functions.iter();
    match at.find(|function| function.holds(addr)) {
        Some(function) => (function.name.clone(), addr - function.addr),
        None => (format!("<{addr:x}>"), 0),
    }
}

/// Returns whether a name is meant.
pub(super) type Fits = Box<dyn Fn(&str) -> bool>;

/// Whether a name is one of those that a definition means: as it is in the file, or as people write it.
pub(super) fn fitting(symbol: &Symbol) -> Result<Fits> {
    Ok(match symbol {
        Symbol::Name(wanted) => {
            let wanted = wanted.clone();
            let sieve = Sieve::new([wanted.as_str()]);
            // `vector<int, allocator<int> >` is written with and without blanks.
            let solid = |name: &str| name.replace(' ', "");
            let written = solid(&wanted);
            Box::new(move |name| {
                name == wanted
                    || name.starts_with(['_', '<'])
                        && sieve.lets_through(name)
                        && spellings(name).iter().any(|name| solid(name) == written)
            })
        }
        Symbol::Pattern(pattern) => {
            let regex = hodo_module::glob::glob(pattern)?;
            // The letters in brackets are alternatives.
            let literal = pattern.split('[').flat_map(|part| {
                let rest = part.rsplit(']').next().unwrap_or_default();
                rest.split(['*', '?'])
            });
            let sieve = Sieve::new(literal);
            // Other patterns would match arguments that are not shown.
            let is_long = pattern.contains(['<', '(']);
            Box::new(move |name| {
                let fits = || match is_long {
                    true => spellings(name).iter().any(|name| regex.is_match(name)),
                    false => regex.is_match(&demangle(name, Style::Simple)),
                };
                regex.is_match(name) || sieve.lets_through(name) && fits()
            })
        }
    })
}
