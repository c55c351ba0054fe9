//! The static keys of a process that is not recorded.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result};
use hodo_symbols::Key;

use super::{File, Keys, sound, write};
use hodo_module::mapped::of_mapping;
use hodo_ptrace::Memory;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::maps::Mapping;

/// The bit of a key's state that says that it is switched on. The other bits are the number of its users.
const ON: u32 = 1 << 31;

/// A key of a process.
#[derive(Debug)]
pub struct Found {
    /// Its address in the process.
    pub at: u64,
    /// The key as described in its file.
    pub key: Key,
    /// Its state; 0 if it is disabled.
    pub state: u32,
    /// The number of branches that it controls.
    pub branches: u64,
}

impl Found {
    /// The number of users that hold it.
    pub fn users(&self) -> u32 {
        self.state & !ON
    }
}

impl Keys {
    /// All keys of a process with these mappings. The program's own file is `program`.
    ///
    /// # Errors
    /// If the table of a file cannot be read.
    pub fn of(pid: i32, maps: &[Mapping], program: &Path) -> Result<Self> {
        let mut mappings: Vec<&Mapping> = code(maps).collect();
        // Its symbols take precedence.
        mappings.sort_by_key(|mapping| mapping.path != program);
        let mut keys = Self::default();
        for mapping in mappings {
            let Ok((_, image)) = of_mapping(pid, mapping) else {
                continue;
            };
            let Some(bias) = image.bias(mapping.offset, mapping.start) else {
                continue;
            };
            let known = |file: &File| file.bias == bias && file.image.path == image.path;
            if keys.files.iter().any(known) {
                continue;
            }
            let table = || format!("the table of static branches of {}", image.path.display());
            let own = hodo_symbols::keys(&image.bytes).with_context(table)?;
            keys.files.push(File {
                image: Rc::new(image),
                bias,
                keys: Rc::new(own),
            });
        }
        Ok(keys)
    }

    /// The current states. Keys in memory that belongs to no file are left out.
    ///
    /// # Errors
    /// If memory cannot be accessed.
    pub fn look(&self, memory: &Memory) -> Result<Vec<Found>> {
        let mut branches: BTreeMap<u64, u64> = BTreeMap::new();
        for place in self.places(&self.symbols()) {
            *branches.entry(place.key).or_default() += 1;
        }
        let mut found = Vec::new();
        for (at, branches) in branches {
            let file = self.files.iter().find(|file| file.holds(at));
            if let Some(key) = file.and_then(|file| file.key(at)) {
                let state = state(memory, at)?;
                found.push(Found {
                    at,
                    key,
                    state,
                    branches,
                });
            }
        }
        Ok(found)
    }

    /// Switches some of them on or off, and returns their previous states. All threads are stopped, and none is
    /// switching keys.
    ///
    /// # Errors
    /// If memory cannot be accessed, or somebody else has changed a branch: nothing is switched then.
    pub fn set(&self, memory: &Memory, keys: &mut [Found], on: bool) -> Result<Vec<u32>> {
        let wanted: HashSet<u64> = keys.iter().map(|key| key.at).collect();
        let symbols = self.symbols();
        let places = self.places(&symbols);
        let places: Vec<_> = places.filter(|place| wanted.contains(&place.key)).collect();
        for place in &places {
            sound(memory, place)?;
        }
        let mut enabled = HashMap::new();
        let mut all = Vec::new();
        for key in keys {
            let before = state(memory, key.at)?;
            key.state = if on { before | ON } else { before & !ON };
            memory.write(TargetAddr(key.at), &key.state.to_le_bytes())?;
            enabled.insert(key.at, key.state != 0);
            all.push(before);
        }
        for place in &places {
            write(memory, place, enabled[&place.key])?;
        }
        Ok(all)
    }
}

/// The mappings of files' code.
pub fn code(maps: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    maps.iter().filter(|m| m.executable && m.inode != 0)
}

/// The state of a key.
fn state(memory: &Memory, key: u64) -> Result<u32> {
    let mut state = [0; 4];
    memory.read(TargetAddr(key), &mut state)?;
    Ok(u32::from_le_bytes(state))
}
