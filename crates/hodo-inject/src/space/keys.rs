//! The static keys of tracepoints, which hodo holds while their events are recorded: it is one more user of the key, as
//! if the program had switched it on itself.
//!
//! Branches are written while no other thread executes them: before the code of their file has run, or while all
//! threads are stopped. So whole instructions can be written at once, without the steps that a running program must
//! take. What the program does later is consistent with that, because it reads the key's state and the bytes at the
//! branch.

mod outside;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use hodo_symbols::{Branch, Key, KeyPlace};

pub use outside::{Found, code};

use hodo_module::Image;
use hodo_ptrace as ptrace;
use hodo_ptrace::Memory;
use hodo_ptrace::TargetAddr;

/// The static keys of an address space. All addresses are those of the process.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    /// In the order in which they were mapped; empty if no key matters.
    files: Vec<File>,
    /// Keys that hodo holds or will hold.
    wanted: BTreeSet<u64>,
    held: BTreeSet<u64>,
}

/// A mapped file, and its bias.
pub type Mapped = (Rc<Image>, u64);

/// A mapped file.
#[derive(Debug, Clone)]
struct File {
    image: Rc<Image>,
    bias: u64,
    keys: Rc<hodo_symbols::Keys>,
}

/// The addresses of symbols: by name, the files and the addresses.
type Symbols = HashMap<String, Vec<(usize, u64)>>;

/// A branch in the process.
struct Place<'b> {
    branch: &'b Branch,
    code: u64,
    key: u64,
}

impl File {
    fn holds(&self, at: u64) -> bool {
        let start = self
            .image
            .segments
            .first()
            .map_or(0, |segment| segment.addr);
        (start..self.image.end).contains(&at.wrapping_sub(self.bias))
    }

    /// The key at an address in the process.
    fn key(&self, at: u64) -> Option<Key> {
        let addr = at.wrapping_sub(self.bias);
        let mut own = self.keys.keys.iter();
        let own = own.find(|key| key.addr == addr && !key.name.is_empty());
        own.cloned()
            .or_else(|| hodo_symbols::key_at(&self.image.bytes, addr))
    }
}

impl Keys {
    /// Adds files, and finds the keys to hold: those that are wanted, judged by themselves and the path of their file.
    /// Errors in a file's table are reported when it is planned.
    pub fn add(&mut self, files: &[Mapped], is_wanted: impl Fn(&Key, &Path) -> bool) {
        for (image, bias) in files {
            let known = |file: &File| file.bias == *bias && file.image.path == image.path;
            if !self.files.iter().any(known) {
                self.files.push(File {
                    image: Rc::clone(image),
                    bias: *bias,
                    keys: Rc::new(hodo_symbols::keys(&image.bytes).unwrap_or_default()),
                });
            }
        }
        let symbols = self.symbols();
        let mut named: BTreeMap<u64, bool> = BTreeMap::new();
        for place in self.places(&symbols) {
            named.entry(place.key).or_insert_with(|| {
                let key = self.named(&place, &symbols);
                key.is_some_and(|(key, path)| is_wanted(&key, path))
            });
        }
        let wanted = named.into_iter().filter(|(_, wanted)| *wanted);
        self.wanted = wanted.map(|(key, _)| key).collect();
    }

    /// Forgets everything about a file that is no longer mapped.
    pub fn forget(&mut self, start: u64) {
        let Some(index) = self.files.iter().position(|file| file.holds(start)) else {
            return;
        };
        let gone = self.files.remove(index);
        self.held.retain(|&key| !gone.holds(key));
        self.wanted.retain(|&key| !gone.holds(key));
    }

    /// Forgets which keys are held: another is responsible for them now.
    pub fn let_go(&mut self) {
        self.held.clear();
        self.wanted.clear();
    }

    /// The keys that hodo holds or will hold.
    pub fn all(&self) -> impl Iterator<Item = u64> {
        self.held.union(&self.wanted).copied()
    }

    /// The keys of a process in which a hodo that is gone has held these.
    pub fn held_by_another(files: &[Mapped], held: &[u64]) -> Self {
        let file = |(image, bias): &Mapped| File {
            image: Rc::clone(image),
            bias: *bias,
            keys: Rc::new(hodo_symbols::keys(&image.bytes).unwrap_or_default()),
        };
        Self {
            files: files.iter().map(file).collect(),
            wanted: BTreeSet::new(),
            held: held.iter().copied().collect(),
        }
    }

    /// Whether a thread of the process is currently switching keys. A lock that was copied with the memory of another
    /// process does not count.
    pub fn is_busy(&self, pid: i32, memory: &Memory) -> bool {
        let mut owners = self.files.iter().filter_map(|file| {
            let lock = file.keys.lock?.wrapping_add(file.bias);
            let owner = memory.read_u64(TargetAddr(lock)).ok()?;
            (owner != 0).then_some(owner >> 32)
        });
        owners.any(|owner| {
            // As the process itself sees it.
            let own = ptrace::status(pid, "NStgid:");
            let own = own.and_then(|ids| ids.split_whitespace().last()?.parse::<u64>().ok());
            own.is_none_or(|own| owner == own)
        })
    }

    /// Waits for some milliseconds, with threads running, until none is switching keys: the best moment to stop them.
    pub fn wait_until_free(&self, pid: i32, memory: &Memory) {
        for _ in 0..400 {
            std::thread::sleep(Duration::from_micros(20));
            if !self.is_busy(pid, memory) {
                return;
            }
        }
    }

    /// Holds the wanted keys, and writes the branches on all of these according to their state.
    ///
    /// # Errors
    /// The first obstacle: memory that cannot be accessed, or a branch that somebody else has changed. All other
    /// branches are written.
    pub fn hold(&mut self, memory: &Memory) -> Result<()> {
        for &key in &self.wanted {
            if !self.held.contains(&key) {
                count(memory, key, 1)?;
                self.held.insert(key);
            }
        }
        self.apply(memory, &self.held, true)
    }

    /// Writes the branches on keys.
    fn apply(&self, memory: &Memory, keys: &BTreeSet<u64>, enabled: bool) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let symbols = self.symbols();
        let places = self.places(&symbols);
        let written: Vec<Result<()>> = places
            .filter(|place| keys.contains(&place.key))
            .map(|place| write(memory, &place, enabled))
            .collect();
        written.into_iter().collect()
    }

    /// Undoes that. What cannot be undone is gone, or belongs to somebody else.
    pub fn release(&self, memory: &Memory) {
        let mut off = BTreeSet::new();
        for &key in &self.held {
            // Its library may have been unloaded.
            if let Ok(0) = count(memory, key, -1) {
                off.insert(key);
            }
        }
        let _ = self.apply(memory, &off, false);
    }

    /// The key of a branch with its name, and the path of the file that defines it.
    fn named(&self, place: &Place<'_>, symbols: &Symbols) -> Option<(Key, &Path)> {
        let at = |at: u64| {
            let file = self.files.iter().find(|file| file.holds(at))?;
            let key = file.key(at).filter(|key| !key.name.is_empty())?;
            Some((key, &*file.image.path))
        };
        // A program may have a copy of a library's key, which the dynamic linker fills.
        at(place.key).or_else(|| {
            let (KeyPlace::Here {
                symbol: Some(symbol),
                offset,
                ..
            }
            | KeyPlace::Elsewhere { symbol, offset }) = &place.branch.key
            else {
                return None;
            };
            let mut others = symbols.get(symbol)?.iter();
            others.find_map(|(_, addr)| at(addr.wrapping_add(*offset)))
        })
    }

    /// The addresses of the symbols that branches name.
    fn symbols(&self) -> Symbols {
        let mut found = Symbols::new();
        for branch in self.files.iter().flat_map(|file| &file.keys.branches) {
            let (KeyPlace::Elsewhere { symbol, .. }
            | KeyPlace::Here {
                symbol: Some(symbol),
                ..
            }) = &branch.key
            else {
                continue;
            };
            if found.contains_key(symbol) {
                continue;
            }
            let all = self.files.iter().enumerate().filter_map(|(index, file)| {
                let addr = file.image.dynamic_symbol(symbol)?;
                Some((index, addr.wrapping_add(file.bias)))
            });
            found.insert(symbol.clone(), all.collect());
        }
        found
    }

    /// The key of a branch in a file. The program's own symbols take precedence; among several others, the file's own.
    fn key_of(&self, index: usize, branch: &Branch, symbols: &Symbols) -> Option<u64> {
        let (symbol, offset) = match &branch.key {
            KeyPlace::Here {
                addr, symbol: None, ..
            } => return Some(addr.wrapping_add(self.files[index].bias)),
            KeyPlace::Here {
                symbol: Some(symbol),
                offset,
                ..
            }
            | KeyPlace::Elsewhere { symbol, offset } => (symbol, *offset),
        };
        let all = symbols.get(symbol)?;
        let of = |wanted: usize| all.iter().find(|(file, _)| *file == wanted);
        let found = of(0).or_else(|| of(index)).or_else(|| all.first())?;
        Some(found.1.wrapping_add(offset))
    }

    /// All branches with their keys.
    fn places<'k>(&'k self, symbols: &'k Symbols) -> impl Iterator<Item = Place<'k>> {
        let files = self.files.iter().enumerate();
        files.flat_map(move |(index, file)| {
            file.keys.branches.iter().filter_map(move |branch| {
                Some(Place {
                    branch,
                    code: branch.code.wrapping_add(file.bias),
                    key: self.key_of(index, branch, symbols)?,
                })
            })
        })
    }
}

/// Changes the state of a key by a number of users, and returns the new state.
///
/// # Errors
/// If memory cannot be accessed, or there are too many or too few users.
fn count(memory: &Memory, key: u64, change: i32) -> Result<u32> {
    const ON: u32 = 1 << 31;
    let mut state = [0; 4];
    memory.read(TargetAddr(key), &mut state)?;
    let state = u32::from_le_bytes(state);
    let users = (state & !ON).checked_add_signed(change);
    let Some(users) = users.filter(|users| users & ON == 0) else {
        bail!("the static key at {key:#x} has {} users", state & !ON);
    };
    let state = state & ON | users;
    memory.write(TargetAddr(key), &state.to_le_bytes())?;
    Ok(state)
}

/// Writes a branch for the state of its key.
fn write(memory: &Memory, place: &Place<'_>, enabled: bool) -> Result<()> {
    let wanted = place.branch.bytes(enabled);
    if sound(memory, place)? == wanted {
        return Ok(());
    }
    memory.write(TargetAddr(place.code), &wanted)
}

/// The bytes at a branch.
///
/// # Errors
/// If somebody else has changed it.
fn sound(memory: &Memory, place: &Place<'_>) -> Result<Vec<u8>> {
    let forms = [true, false].map(|enabled| place.branch.bytes(enabled));
    let mut now = vec![0; forms[0].len()];
    memory.read(TargetAddr(place.code), &mut now)?;
    // While it is being changed, it is a `test` with any number.
    if !forms.contains(&now) && ![forms[0][0], forms[1][0], 0xA8, 0xA9].contains(&now[0]) {
        bail!(
            "the static branch at {:#x} was changed by something else (it begins with byte {:#04x})",
            place.code,
            now[0]
        );
    }
    Ok(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_counted_beside_what_the_program_has_switched_on() {
        let pid = std::process::id().cast_signed();
        let memory = Memory::open(pid).expect("one's own memory");
        let state = std::cell::Cell::new(0u32);
        let at = state.as_ptr().addr() as u64;
        let change = |by| {
            let counted = count(&memory, at, by).map_err(|error| error.to_string());
            (counted, state.get())
        };
        assert_eq!(change(1), (Ok(1), 1));
        assert_eq!(change(1), (Ok(2), 2));
        assert_eq!(change(-1), (Ok(1), 1));
        assert_eq!(change(-1), (Ok(0), 0));
        let error = |users| Err(format!("the static key at {at:#x} has {users} users"));
        assert_eq!(change(-1), (error(0), 0));
        const ON: u32 = 1 << 31;
        state.set(ON);
        assert_eq!(change(1), (Ok(ON | 1), ON | 1));
        assert_eq!(change(-1), (Ok(ON), ON));
        assert_eq!(change(-1), (error(0), ON));
        state.set(ON - 1);
        assert_eq!(change(1), (error(ON - 1), ON - 1));
        assert!(count(&memory, 8, 1).is_err(), "nothing is mapped there");
    }
}
