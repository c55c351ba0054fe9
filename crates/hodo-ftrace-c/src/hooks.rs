//! Which registers are kept around hooks: what their flags promise, or else what their code can change.

use std::ffi::c_ulong;

use hodo_ftrace::{VECTORS, Vectors};
use hodo_isa::clobbers::{self, Source};
use hodo_isa::effects;
use hodo_sys::{Mapping, Memory};

use crate::change::{Error, check_on};

/// In `flags`: the hooks promise to change no registers but general ones. Their code is not read.
pub const GENERAL_REGISTERS: usize = 32;

/// A structure of hooks, which a program has passed.
pub trait Hooks: 'static {
    /// Where its hooks are, in words from the beginning, and what they are called.
    const HOOKS: &'static [(usize, &'static str)];
    /// Whether a hook may be missing.
    const OPTIONAL: bool;
    /// The word with the flags.
    const FLAGS: usize;
    /// All flags that it may have.
    const KNOWN: usize;
}

impl Hooks for hodo_ftrace::EntryOps {
    const HOOKS: &'static [(usize, &'static str)] = &[(0, "func")];
    const OPTIONAL: bool = false;
    const FLAGS: usize = 1;
    const KNOWN: usize = VECTORS | GENERAL_REGISTERS;
}

impl Hooks for hodo_ftrace::GraphOps {
    const HOOKS: &'static [(usize, &'static str)] = &[(0, "entry"), (1, "exit")];
    const OPTIONAL: bool = true;
    const FLAGS: usize = 2;
    const KNOWN: usize = VECTORS | GENERAL_REGISTERS;
}

impl Hooks for hodo_ftrace::dynamic::Ops {
    const HOOKS: &'static [(usize, &'static str)] = &[(0, "func")];
    const OPTIONAL: bool = false;
    const FLAGS: usize = 1;
    const KNOWN: usize = {
        use hodo_ftrace::dynamic::{EVERY_CALL, IP_MODIFY, PER_THREAD, SAVE_REGISTERS};
        VECTORS | GENERAL_REGISTERS | SAVE_REGISTERS | IP_MODIFY | PER_THREAD | EVERY_CALL
    };
}

/// The hooks that a program has passed, and what they may change.
///
/// # Errors
/// If a hook is missing that must be there, or a flag is unknown.
///
/// # Safety
/// The pointer is null, or leads to such a structure, which stays as it is as long as the process exists.
pub unsafe fn hooks<T: Hooks>(ops: *const T) -> Result<Option<(&'static T, Vectors)>, Error> {
    if ops.is_null() {
        return Ok(None);
    }
    check_on()?;
    // A hook that is null is no value of the type. SAFETY: as the caller promises; the structure consists of words.
    let word = |number: usize| unsafe { ops.cast::<usize>().add(number).read() };
    let flags = word(T::FLAGS);
    let unknown = flags & !T::KNOWN;
    if unknown != 0 {
        return Err(Error::Wrong(format!(
            "the flags {unknown:#x} of the hooks are unknown"
        )));
    }
    for (number, name) in T::HOOKS {
        if word(*number) == 0 && !T::OPTIONAL {
            return Err(Error::Wrong(format!("there is no hook: {name} is null")));
        }
    }
    let vectors = match (flags & VECTORS != 0, flags & GENERAL_REGISTERS != 0) {
        (true, true) => {
            return Err(Error::Wrong(
                "the flags HODO_FTRACE_VECTORS and HODO_FTRACE_GENERAL_REGISTERS exclude each other"
                    .to_owned(),
            ));
        }
        (true, false) => Vectors::All,
        (false, true) => Vectors::None,
        (false, false) => {
            let functions = T::HOOKS.iter().map(|(number, _)| word(*number));
            changed(functions.filter(|function| *function != 0))
        }
    };
    // SAFETY: as the caller promises, and no hook is null that must not be.
    Ok(Some((unsafe { &*ops }, vectors)))
}

/// What functions of this process may change.
fn changed(functions: impl Iterator<Item = usize>) -> Vectors {
    let Ok(memory) = Memory::open() else {
        return Vectors::All;
    };
    let mut maps = Vec::new();
    if hodo_sys::maps::mappings(&mut |mapping| maps.push(mapping)).is_err() {
        return Vectors::All;
    }
    let mut own = Own { memory, maps };
    functions.fold(Vectors::None, |all, function| {
        all.max(match clobbers::vectors(function as u64, &mut own) {
            effects::Vectors::None => Vectors::None,
            effects::Vectors::Part => Vectors::Part,
            effects::Vectors::All => Vectors::All,
        })
    })
}

/// The code of this process.
struct Own {
    memory: Memory,
    maps: Vec<Mapping>,
}

impl Source for Own {
    fn code(&mut self, addr: u64, len: usize) -> Vec<u8> {
        self.memory.read(addr, len)
    }

    fn constant(&mut self, word: u64) -> Option<u64> {
        let at = self.maps.partition_point(|map| map.range.end <= word);
        let map = self.maps.get(at)?;
        if map.range.start > word || map.write {
            return None;
        }
        let bytes = self.memory.read(word, size_of::<c_ulong>());
        bytes.try_into().ok().map(u64::from_le_bytes)
    }
}
