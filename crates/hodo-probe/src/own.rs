//! The engine's own code that runs at hits. A probe there would be hit while a hit is handled, and so without end.
//!
//! The compiler puts it among the program's code, so it is followed from where the kernel enters it, through direct
//! calls and jumps, by whole functions. Functions that never return are left out: they report that the program is
//! broken, and have much of the program in common.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use hodo_isa::effects::Flow;
use hodo_isa::native::vectors::{MOST_BYTES, look};

use super::functions;
use super::maps::Mapping;
use super::memory::Memory;
use super::site::original_code;
use super::{linux, signals, threads};

/// The longest function that is followed, and how many.
const LONGEST: u64 = 1 << 16;
const MOST: usize = 2000;

/// Whether the whole file is the engine's.
static WHOLE_FILE: AtomicBool = AtomicBool::new(false);

/// From now on, all code of the file that the engine is in is the engine's.
pub(super) fn take_file() {
    WHOLE_FILE.store(true, Ordering::Relaxed);
}

/// Where hits enter the engine.
fn entries() -> impl Iterator<Item = u64> {
    let claim = threads::claim as *const () as u64;
    signals::entries()
        .into_iter()
        .chain(linux::at_hits())
        .chain([claim])
}

/// The engine's functions, by start; the values are their ends.
#[derive(Debug)]
pub(super) struct Own(BTreeMap<u64, u64>);

impl Own {
    /// Returns whether an address is in the engine's own code. `known` is filled when it is needed.
    pub(super) fn has(
        known: &mut Option<Self>,
        memory: &Memory,
        maps: &[Mapping],
        addr: u64,
    ) -> bool {
        let here = threads::claim as *const () as u64;
        let file = functions::image(memory, maps, here);
        if file.is_none() || functions::image(memory, maps, addr) != file {
            return false;
        }
        if WHOLE_FILE.load(Ordering::Relaxed) {
            return true;
        }
        let own = known.get_or_insert_with(|| Self::find(memory, maps));
        let before = own.0.range(..=addr).next_back();
        before.is_some_and(|(_, end)| addr < *end)
    }

    fn find(memory: &Memory, maps: &[Mapping]) -> Self {
        let mut own = BTreeMap::new();
        let mut seen = BTreeMap::new();
        let mut open: Vec<u64> = entries().collect();
        while let Some(addr) = open.pop() {
            let before = seen.range(..=addr).next_back();
            if before.is_some_and(|(_, end)| addr < *end) || seen.len() == MOST {
                continue;
            }
            let Some(function) = functions::around(memory, maps, addr) else {
                continue;
            };
            seen.insert(function.start, function.end);
            if let Some(leads_to) = followed(memory, &function) {
                own.insert(function.start, function.end);
                open.extend(leads_to);
            }
        }
        Self(own)
    }
}

/// Where the code of a function leads outside of it; `None` if it never returns.
fn followed(memory: &Memory, function: &Range<u64>) -> Option<Vec<u64>> {
    let end = function.end.min(function.start + LONGEST);
    // The last instructions may be looked at with those that follow.
    let code = original_code(memory, function.start..end + MOST_BYTES as u64);
    let (mut at, mut returns, mut leads_to) = (function.start, false, Vec::new());
    while at < end {
        let Some(insn) = code
            .get((at - function.start) as usize..)
            .and_then(|here| look(here, at))
        else {
            break;
        };
        match insn.flow {
            Flow::Call(to) => leads_to.push(to),
            Flow::Branch(to) | Flow::Jump(to) if !function.contains(&to) => {
                returns = true;
                leads_to.push(to);
            }
            Flow::Return { .. } | Flow::IndirectJump => returns = true,
            _ => {}
        }
        at = insn.end;
    }
    returns.then_some(leads_to)
}
