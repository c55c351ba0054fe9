//! The static keys of tracepoints, which are held while their events are recorded: as one more user of a key, as
//! if the program had switched it on itself.
//!
//! Branches are written while no other thread executes them: before the code of their file has run, or while all threads are
//! stopped. So whole instructions can be written at once, without the steps that a program takes that runs. What
//! the program does later agrees with it, for it reads the key's state and the bytes at the branch.

use std::collections::HashMap;
use std::rc::Rc;

use anyhow::{Result, bail};
use hodo_symbols::{Branch, KeyPlace};
use serde_json::json;

use super::{Space, Work};
use crate::modules::Image;
use crate::remote::{self, Memory};

/// The word by which threads keep each other from switching keys; while it is not 0, a thread does. Its upper half is the id of that
/// thread's process.
const LOCK: &str = "hodo_keys_lock";

/// The static keys of an address space. All addresses are those of the process.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    /// In the order in which they were mapped; only if events are looked for.
    files: Vec<File>,
    /// The keys that are held.
    held: Vec<u64>,
}

/// A file that is mapped, what was added to its link-time addresses, and the keys of it that are to be held: link-time addresses.
pub type Keyed = (Rc<Image>, u64, Vec<u64>);

/// A file that is mapped.
#[derive(Debug, Clone)]
struct File {
    image: Rc<Image>,
    bias: u64,
    branches: Rc<[Branch]>,
    lock: Option<u64>,
}

/// A branch of the process.
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

    /// Where a symbol of its own is.
    fn symbol(&self, name: &str) -> Option<u64> {
        let found = self.image.dynamic_symbol(name)?;
        Some(found.wrapping_add(self.bias))
    }
}

/// Holds keys of files that were mapped now, whose code has not run. What goes wrong is a remark.
///
/// # Errors
/// If the log cannot be written.
pub(super) fn mapped(
    pid: i32,
    memory: &Memory,
    files: Vec<Keyed>,
    space: &mut Space,
    context: &mut Work<'_>,
) -> Result<()> {
    if !context.modules.probes.want_events() {
        return Ok(());
    }
    for (image, bias, _) in &files {
        space.keys.add(image, *bias);
    }
    if let Err(error) = space.keys.hold(memory, &files) {
        let text = format!("static keys: {error:#}");
        let remark = json!({"remark": {"pid": pid, "text": text}});
        context.session.log(&remark)?;
    }
    Ok(())
}

impl Keys {
    /// Adds a file that was mapped now. What is wrong with its table is told when it is planned.
    pub fn add(&mut self, image: &Rc<Image>, bias: u64) {
        let known = |file: &File| file.bias == bias && file.image.path == image.path;
        if self.files.iter().any(known) {
            return;
        }
        let branches = hodo_symbols::keys(&image.bytes).map(|keys| keys.branches);
        let branches: Rc<[Branch]> = branches.unwrap_or_default().into();
        let [lock] = match branches.is_empty() {
            true => [None],
            false => image.symbols(&[LOCK]),
        };
        self.files.push(File {
            image: Rc::clone(image),
            bias,
            branches,
            lock: lock.map(|(at, _)| at.wrapping_add(bias)),
        });
    }

    /// Forgets what a file had that is not mapped any more.
    pub fn forget(&mut self, start: u64) {
        let Some(index) = self.files.iter().position(|file| file.holds(start)) else {
            return;
        };
        let gone = self.files.remove(index);
        self.held.retain(|&key| !gone.holds(key));
    }

    /// Forgets which keys are held: others answer for that.
    pub fn let_go(&mut self) {
        self.held.clear();
    }

    /// Whether a thread of the process is just switching keys. A lock that was copied with the memory of another process does
    /// not count.
    pub fn is_busy(&self, pid: i32, memory: &Memory) -> bool {
        let mut owners = self.files.iter().filter_map(|file| {
            let owner = memory.read_u64(file.lock?).ok()?;
            (owner != 0).then_some(owner >> 32)
        });
        // In the namespace of the process itself.
        let own = remote::status(pid, "NStgid:");
        let own = own.and_then(|ids| ids.split_whitespace().last()?.parse::<u64>().ok());
        owners.any(|owner| own.is_none_or(|own| owner == own))
    }

    /// Holds keys, and makes the branches on all that are held what they have to be. `wanted`: files with link-time
    /// addresses of keys of theirs.
    ///
    /// # Errors
    /// If memory is not to be had, or somebody else has changed a branch.
    pub fn hold(&mut self, memory: &Memory, wanted: &[Keyed]) -> Result<()> {
        let symbols = self.symbols();
        for (image, bias, keys) in wanted {
            for key in keys {
                let key = self.real_key(image, *bias, *key, &symbols);
                if self.held.contains(&key) {
                    continue;
                }
                count(memory, key, 1)?;
                self.held.push(key);
            }
        }
        if self.held.is_empty() {
            return Ok(());
        }
        for place in self.places(&symbols) {
            if self.held.contains(&place.key) {
                write(memory, &place, true)?;
            }
        }
        Ok(())
    }

    /// Undoes that. What cannot be undone is gone.
    ///
    /// # Errors
    /// If memory is not to be had.
    pub fn release(&self, memory: &Memory) -> Result<()> {
        let mut off = Vec::new();
        for &key in &self.held {
            // Its library may be unloaded meanwhile.
            if let Ok(0) = count(memory, key, -1) {
                off.push(key);
            }
        }
        if off.is_empty() {
            return Ok(());
        }
        for place in self.places(&self.symbols()) {
            if off.contains(&place.key) {
                write(memory, &place, false)?;
            }
        }
        Ok(())
    }

    /// Where the symbols are that branches name.
    fn symbols(&self) -> HashMap<String, Vec<(usize, u64)>> {
        let mut found: HashMap<String, Vec<(usize, u64)>> = HashMap::new();
        for file in &self.files {
            for branch in &*file.branches {
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
                let all = self.files.iter().enumerate();
                let all = all.filter_map(|(index, file)| Some((index, file.symbol(symbol)?)));
                found.insert(symbol.clone(), all.collect());
            }
        }
        found
    }

    /// The key of a branch of a file. The program's own symbols come first; of several others the file's own.
    fn key_of(
        &self,
        index: usize,
        branch: &Branch,
        symbols: &HashMap<String, Vec<(usize, u64)>>,
    ) -> Option<u64> {
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

    /// Where a key of a file really is: the dynamic linker may have taken that of another file for it.
    fn real_key(
        &self,
        image: &Rc<Image>,
        bias: u64,
        key: u64,
        symbols: &HashMap<String, Vec<(usize, u64)>>,
    ) -> u64 {
        let own = key.wrapping_add(bias);
        let is_it = |file: &File| file.bias == bias && file.image.path == image.path;
        let Some(index) = self.files.iter().position(is_it) else {
            return own;
        };
        let mut branches = self.files[index].branches.iter();
        let asks = |branch: &&Branch| matches!(branch.key, KeyPlace::Here { addr, symbol: Some(_), .. } if addr == key);
        let branch = branches.find(asks);
        branch
            .and_then(|branch| self.key_of(index, branch, symbols))
            .unwrap_or(own)
    }

    /// All branches with their keys.
    fn places<'k>(
        &'k self,
        symbols: &'k HashMap<String, Vec<(usize, u64)>>,
    ) -> impl Iterator<Item = Place<'k>> {
        let files = self.files.iter().enumerate();
        files.flat_map(move |(index, file)| {
            file.branches.iter().filter_map(move |branch| {
                Some(Place {
                    branch,
                    code: branch.code.wrapping_add(file.bias),
                    key: self.key_of(index, branch, symbols)?,
                })
            })
        })
    }
}

/// Changes the state of a key by a number of users, and tells what it is then.
fn count(memory: &Memory, key: u64, change: i32) -> Result<u32> {
    let mut state = [0; 4];
    memory.read(key, &mut state)?;
    let state = u32::from_le_bytes(state).wrapping_add_signed(change);
    memory.write(key, &state.to_le_bytes())?;
    Ok(state)
}

/// Makes a branch what it has to be while its key is in a state.
fn write(memory: &Memory, place: &Place<'_>, enabled: bool) -> Result<()> {
    let wanted = place.branch.bytes(enabled);
    let mut now = vec![0; wanted.len()];
    memory.read(place.code, &mut now)?;
    if now == wanted {
        return Ok(());
    }
    // While it is changed, it is a `test` with any number.
    let others = [place.branch.bytes(!enabled)[0], 0xA8, 0xA9];
    if !others.contains(&now[0]) {
        bail!(
            "the static branch at {:#x} was changed by somebody else (it begins with byte {:#04x})",
            place.code,
            now[0]
        );
    }
    memory.write(place.code, &wanted)
}
