//! The modules that are known, their sites, and who wants to see what.

use std::collections::HashMap;
use std::path::Path;

use hodo_ftrace::dynamic::{self, Batch, Failure, Module, Site, Text};
use hodo_symbols::{Style, demangle};

use crate::filter::{Filter, Function};
use crate::find::{self, Found};
use crate::host::Host;
use crate::loaded::Loaded;

/// Whom a filter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// The hook of `set_entry`.
    Entry,
    /// The hooks of `set_graph`.
    Graph,
    /// A tracer, by its address.
    Ops(usize),
}

/// A file with sites.
struct Known {
    loaded: Loaded,
    module: &'static Module,
    /// The function of each site.
    names: Vec<Named>,
    /// How many places cannot become sites.
    refused: usize,
}

/// The function of a site.
struct Named {
    name: String,
    /// If it is another one.
    demangled: Option<String>,
    /// Its link-time address, and its size in bytes; 0 if unknown.
    address: u64,
    size: u64,
}

/// A function, for those who number them.
pub struct Numbered<'a> {
    pub name: &'a str,
    /// Its link-time address.
    pub address: u64,
    /// Its size in bytes; 0 if unknown.
    pub size: u64,
}

/// Numbers the functions of a file. Returns the number of the first; none if they have none.
type Number = fn(&Path, &[Numbered<'_>]) -> Option<u32>;

/// A site, for lists.
pub struct Listed<'a> {
    pub site: &'static Site,
    pub name: &'a str,
    pub path: &'a Path,
}

/// All that is known.
#[derive(Default)]
pub struct All {
    known: Vec<Known>,
    /// Files without sites.
    without: Vec<Loaded>,
    /// What removed modules had. Another thread may still look at it, so it is never freed, but used again.
    unused: Vec<(&'static Module, &'static [Site])>,
    filters: HashMap<Who, Filter>,
    /// The bits in use.
    bits: HashMap<Who, u64>,
    /// Who numbers functions.
    number: Option<Number>,
}

impl All {
    /// Looks at what is loaded now: finds the sites of what is new, switches them off, and forgets what is gone.
    /// `alone` says that the process has no other thread; `new` is a file whose code has not run yet.
    pub fn update(&mut self, loaded: &[Loaded], host: &Host, alone: bool, new: Option<usize>) {
        self.without.retain(|old| loaded.contains(old));
        let (known, gone) = std::mem::take(&mut self.known)
            .into_iter()
            .partition(|known| loaded.contains(&known.loaded));
        self.known = known;
        for gone in gone {
            let sites = gone.module.sites();
            dynamic::remove(gone.module);
            self.unused.push((gone.module, sites));
        }
        for file in loaded {
            let is_known =
                self.without.contains(file) || self.known.iter().any(|known| known.loaded == *file);
            if is_known {
                continue;
            }
            let is_new = new.is_some_and(|address| file.contains(address));
            let found = find::find(file, host);
            if found.places.is_empty() {
                self.without.push(file.clone());
            } else {
                self.add(file.clone(), found, host, alone || is_new);
            }
        }
    }

    /// Forgets a file that is about to be unloaded.
    pub fn forget(&mut self, address: usize) {
        let place = self
            .known
            .iter()
            .position(|known| known.loaded.contains(address));
        if let Some(place) = place {
            let gone = self.known.remove(place);
            let sites = gone.module.sites();
            dynamic::remove(gone.module);
            self.unused.push((gone.module, sites));
        }
    }

    fn add(&mut self, loaded: Loaded, found: Found, host: &Host, alone: bool) {
        const LONGEST: usize = 16;
        let (module, table) = self.table(found.places.len());
        let mut names = Vec::new();
        let mut count = 0;
        let mut batch = Batch::new(host);
        let free = |place: &&find::Place| !place.is_taken && !place.is_changed;
        for place in found.places.iter().filter(free) {
            let code = host.read(place.address, LONGEST);
            let Some(prepared) = dynamic::prepare(&code, alone) else {
                continue;
            };
            let at = place.address + prepared.distance;
            if !prepared.bytes.as_slice().is_empty() {
                // A site that could not be written is found out when it is switched on.
                // SAFETY: the place calls what compilers call, or does nothing. What is written does nothing.
                let _ = unsafe { batch.write(at + prepared.offset, prepared.bytes) };
            }
            table[count].set(at, &prepared, place.entry);
            let function = &found.functions[place.function];
            let demangled = demangle(&function.name, Style::Simple);
            names.push(Named {
                name: function.name.clone(),
                demangled: Some(demangled).filter(|other| *other != function.name),
                address: function.addr,
                size: function.size,
            });
            count += 1;
        }
        // As above.
        let _ = batch.flush();
        host.sync();
        dynamic::add(module, &table[..count]);
        // As above.
        let _ = dynamic::fix(module, host);
        let known = Known {
            loaded,
            module,
            refused: found.places.len() - count,
            names,
        };
        if let Some(number) = self.number {
            give_numbers(&known, number);
        }
        for (who, bit) in &self.bits {
            let filter = self.filters.get(who);
            select(&known, *bit, filter);
        }
        self.known.push(known);
    }

    /// Has the functions of all files numbered that are or will be known.
    pub fn number_with(&mut self, number: Number) {
        self.number = Some(number);
        for known in &self.known {
            give_numbers(known, number);
        }
    }

    /// Room for a module with that many sites.
    fn table(&mut self, length: usize) -> (&'static Module, &'static [Site]) {
        let place = self
            .unused
            .iter()
            .position(|(_, sites)| sites.len() >= length);
        if let Some(place) = place {
            return self.unused.swap_remove(place);
        }
        let sites: Vec<Site> = (0..length).map(|_| Site::default()).collect();
        (Box::leak(Box::new(Module::new())), sites.leak())
    }

    /// Changes whom a filter is for.
    pub fn filter(&mut self, who: Who) -> &mut Filter {
        self.filters.entry(who).or_default()
    }

    /// Gives up a filter.
    pub fn drop_filter(&mut self, who: Who) {
        self.filters.remove(&who);
    }

    /// The bit of somebody who has one.
    pub fn bit(&self, who: Who) -> Option<u64> {
        self.bits.get(&who).copied()
    }

    /// Says that somebody has a bit, or none, and wants to see what their filter says, or nothing. Returns the first
    /// function that they cannot have.
    pub fn set_bit(&mut self, who: Who, bit: u64, on: bool) -> Option<String> {
        if on {
            self.bits.insert(who, bit);
            return self.select(who).1;
        }
        self.bits.remove(&who);
        for known in &self.known {
            dynamic::select(known.module, bit, |_| false);
        }
        None
    }

    /// Has somebody see what their filter says. Returns how many functions that are, and the first that they cannot
    /// have.
    pub fn select(&mut self, who: Who) -> (usize, Option<String>) {
        let filter = self.filters.get(&who);
        let Some(bit) = self.bits.get(&who) else {
            let all = self.known.iter().flat_map(functions);
            return (
                all.filter(|(_, function)| filter.is_none_or(|filter| filter.wants(function)))
                    .count(),
                None,
            );
        };
        let mut count = 0;
        let mut refused = None;
        for known in &self.known {
            let (wanted, other) = select(known, *bit, filter);
            count += wanted;
            refused = refused.or(other);
        }
        (count, refused)
    }

    /// Has a patch of functions in its sites, or in none. Files that are loaded later never have it. Returns the first
    /// function that it cannot have.
    pub fn set_patch(&mut self, bit: u64, is_wanted: impl Fn(usize) -> bool) -> Option<String> {
        let mut refused = None;
        for known in &self.known {
            let site = dynamic::select(known.module, bit, |site| is_wanted(site.address()));
            let name = site.and_then(|site| name_of(known, site));
            refused = refused.or(name);
        }
        refused
    }

    /// The site of the function with this name, which must be the only one, or of the function with this address.
    pub fn site_of(&self, name: Option<&str>, address: usize) -> Result<&'static Site, String> {
        if let Some(name) = name {
            let mut filter = Filter::default();
            filter.add(name)?;
            let all = self.known.iter().flat_map(functions);
            let mut found = all.filter(|(_, function)| filter.wants(function));
            let first = found.next();
            return match (first, found.count()) {
                (None, _) => Err(format!("no function with a call site is called {name}")),
                (Some((site, _)), 0) => Ok(site),
                (Some(_), others) => Err(format!(
                    "{} functions are called {name}; name the file: {name}:mod:FILE",
                    others + 1
                )),
            };
        }
        let mut all = self.known.iter().flat_map(|known| {
            let sites = known.module.sites().iter();
            sites
                .zip(&known.names)
                .map(move |(site, named)| (site, known.loaded.base + named.address as usize, known))
        });
        let found = all.find(|(_, start, _)| *start == address);
        found
            .map(|(site, ..)| site)
            .ok_or_else(|| format!("no function with a call site begins at {address:#x}"))
    }

    /// All sites.
    pub fn sites(&self) -> impl Iterator<Item = Listed<'_>> {
        self.known.iter().flat_map(|known| {
            let all = functions(known);
            all.map(|(site, function)| Listed {
                site,
                name: function.name,
                path: &known.loaded.path,
            })
        })
    }

    /// How many places cannot become sites.
    pub fn refused(&self) -> usize {
        self.known.iter().map(|known| known.refused).sum()
    }

    /// The text for a failure.
    pub fn explain(&self, failure: Failure) -> String {
        let name = |address: usize| {
            let mut sites = self.sites();
            let site = sites.find(|listed| listed.site.address() == address);
            site.map_or_else(
                || format!("{address:#x}"),
                |listed| format!("{} in {}", listed.name, listed.path.display()),
            )
        };
        match failure {
            Failure::Write(at, error) => {
                let error = std::io::Error::from_raw_os_error(error);
                format!("the entry of {} cannot be changed: {error}", name(at))
            }
            Failure::Room(at) => format!(
                "there is no memory near enough to {} for its calls",
                name(at)
            ),
            Failure::Changed(at) => format!(
                "the entry of {} was not changed: something else has changed it",
                name(at)
            ),
        }
    }
}

/// Numbers the sites of a module.
fn give_numbers(known: &Known, number: Number) {
    let functions: Vec<Numbered<'_>> = known
        .names
        .iter()
        .map(|named| Numbered {
            name: &named.name,
            address: named.address,
            size: named.size,
        })
        .collect();
    if let Some(first) = number(&known.loaded.path, &functions) {
        for (site, id) in known.module.sites().iter().zip(first..) {
            site.set_id(id);
        }
    }
}

/// The sites of a module, with their functions.
fn functions(known: &Known) -> impl Iterator<Item = (&'static Site, Function<'_>)> {
    let module = known
        .loaded
        .path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("");
    known
        .module
        .sites()
        .iter()
        .zip(&known.names)
        .map(move |(site, named)| {
            let function = Function {
                address: site.address(),
                name: &named.name,
                demangled: named.demangled.as_deref(),
                module,
            };
            (site, function)
        })
}

/// The name of the function of a site.
fn name_of(known: &Known, site: &Site) -> Option<String> {
    let mut all = functions(known);
    let found = all.find(|(other, _)| core::ptr::eq(*other, site));
    found.map(|(_, function)| function.name.to_owned())
}

/// Has somebody see what a filter says in one module.
fn select(known: &Known, bit: u64, filter: Option<&Filter>) -> (usize, Option<String>) {
    let mut all = functions(known);
    let mut count = 0;
    let refused = dynamic::select(known.module, bit, |_| {
        let wanted = all
            .next()
            .is_some_and(|(_, function)| filter.is_none_or(|filter| filter.wants(&function)));
        count += usize::from(wanted);
        wanted
    });
    (count, refused.and_then(|site| name_of(known, site)))
}
