//! What instructions fetch.

use hodo_dbi::{Block, Insn};

use super::level::Cache;
use crate::replacement::Place;

/// An instruction that fetches a line that the instruction before has not fetched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fetch {
    /// Its number in the block.
    pub(super) insn: u16,
    /// Its lines in the first cache.
    pub(super) first: u64,
    pub(super) last: u64,
    /// Where the first line was in the cache when it was fetched here last.
    pub(super) place: Place,
}

/// The instructions of a block that fetch another line than the ones before.
pub(super) fn fetches(block: &Block, shift: u32) -> Vec<Fetch> {
    let mut before = None;
    let mut fetches = Vec::new();
    for (number, insn) in block.insns.iter().enumerate() {
        let first = insn.pc >> shift;
        let last = (insn.pc + u64::from(insn.len) - 1) >> shift;
        if before != Some(first) || first != last {
            fetches.push(Fetch {
                insn: number as u16,
                first,
                last,
                place: Place::NOWHERE,
            });
        }
        before = Some(last);
    }
    fetches
}

/// Fetches that are received by themselves.
#[derive(Debug)]
pub(super) struct Fetched(Vec<Known>);

/// A fetch that was received before.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// The address of its block, and the number of the instruction there. To look at a block takes longer than the
    /// rest.
    key: (usize, usize),
    /// Its lines in the first cache.
    first: u64,
    last: u64,
    /// Where the first line was in the cache.
    place: Place,
}

/// No block has this address.
const NOTHING: Known = Known {
    key: (0, 0),
    first: 0,
    last: 0,
    place: Place::NOWHERE,
};

/// How many fetches are known, each in a place by its block and instruction.
const MOST: usize = 8192;

impl Default for Fetched {
    fn default() -> Self {
        Self(vec![NOTHING; MOST])
    }
}

impl Fetched {
    /// Forgets all, because other blocks may get their addresses.
    pub(super) fn clear(&mut self) {
        self.0.fill(NOTHING);
    }

    /// An instruction is fetched from a cache. Returns whether it was there, or is none.
    #[inline(always)]
    pub(super) fn fetch(&mut self, block: &Block, insn: usize, cache: &mut Cache) -> bool {
        let key = (std::ptr::from_ref(block) as usize, insn);
        let known = &mut self.0[(key.0 / size_of::<Block>() + insn) % MOST];
        if known.key != key {
            let Some(&Insn { pc, len, .. }) = block.insns.get(insn) else {
                return true;
            };
            *known = Known {
                key,
                first: pc >> cache.shift,
                last: (pc + u64::from(len) - 1) >> cache.shift,
                place: Place::NOWHERE,
            };
        }
        cache.lines_near(known.first, known.last, &mut known.place)
    }
}
