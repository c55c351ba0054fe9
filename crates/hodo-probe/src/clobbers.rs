//! Which vector registers a handler may change, judged by its code and that of its callees, so that only those are
//! saved around it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use hodo_isa::clobbers::{Source, vectors};
use hodo_isa::effects::Vectors;

use super::layout::{Handler, KEEP_ALL, KEEP_NONE, KEEP_SOME};
use super::maps::{self, Mapping};
use super::memory::Memory;

/// The bytes by which a handler is known again.
const FIRST: usize = 128;

/// What is known about handlers: by address, with their first bytes, because another module may be there later.
#[derive(Default)]
pub(super) struct Known(BTreeMap<u64, (Vec<u8>, u32)>);

impl Known {
    /// One of `KEEP_…`.
    pub(super) fn of(&mut self, memory: &Memory, maps: &[Mapping], handler: Handler) -> u32 {
        let addr = handler as *const () as u64;
        let bytes = memory.read(addr, FIRST);
        if let Some((known, keep)) = self.0.get(&addr)
            && *known == bytes
        {
            return *keep;
        }
        let keep = match vectors(addr, &mut Own { memory, maps }) {
            Vectors::None => KEEP_NONE,
            Vectors::Part => KEEP_SOME,
            Vectors::All => KEEP_ALL,
        };
        self.0.insert(addr, (bytes, keep));
        keep
    }
}

/// The code of this process.
struct Own<'a> {
    memory: &'a Memory,
    maps: &'a [Mapping],
}

impl Source for Own<'_> {
    fn code(&mut self, addr: u64, len: usize) -> Vec<u8> {
        super::site::original_code(self.memory, addr..addr + len as u64)
    }

    fn constant(&mut self, word: u64) -> Option<u64> {
        maps::find(self.maps, word).filter(|map| !map.write)?;
        let bytes = self.memory.read(word, 8);
        bytes.try_into().ok().map(u64::from_le_bytes)
    }
}
