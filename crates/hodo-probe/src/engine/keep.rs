//! What a handler may change of the vector registers, so that no more than that is kept around it: its code is read, and
//! that of what it calls.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use hodo_arch::native::scan::{Flow, Reference, Sweep};
use hodo_arch::native::vectors::{Vectors, vectors};

use super::layout::{Handler, KEEP_ALL, KEEP_NONE, KEEP_SSE};
use super::maps::{self, Mapping};
use hodo_text::Memory;

/// Instructions that are looked at before a handler is taken to change anything.
const MOST: usize = 4000;
/// Bytes that are read at once.
const CHUNK: usize = 128;

/// What is known of handlers: by their address, with their first bytes, for another module may be there later.
#[derive(Default)]
pub(super) struct Known(BTreeMap<u64, (Vec<u8>, u32)>);

impl Known {
    /// One of `KEEP_…`.
    pub(super) fn of(&mut self, memory: &Memory, maps: &[Mapping], handler: Handler) -> u32 {
        let addr = handler as *const () as u64;
        let bytes = memory.read(addr, CHUNK);
        if let Some((known, keep)) = self.0.get(&addr)
            && *known == bytes
        {
            return *keep;
        }
        let keep = match walk(memory, maps, addr) {
            Vectors::None => KEEP_NONE,
            Vectors::Lower => KEEP_SSE,
            Vectors::All => KEEP_ALL,
        };
        self.0.insert(addr, (bytes, keep));
        keep
    }
}

fn walk(memory: &Memory, maps: &[Mapping], start: u64) -> Vectors {
    let mut seen = BTreeSet::new();
    let mut open = vec![start];
    let mut found = Vectors::None;
    while let Some(at) = open.pop() {
        let mut at = at;
        let mut code: Vec<u8> = Vec::new();
        let mut base = at;
        loop {
            if !seen.insert(at) {
                break;
            }
            if seen.len() > MOST {
                return Vectors::All;
            }
            // An instruction has fifteen bytes at most.
            if ((at - base) as usize) + 15 > code.len() {
                base = at;
                code = super::analyze::code(memory, at..at + CHUNK as u64);
            }
            let here = code.get((at - base) as usize..).unwrap_or_default();
            let Some(insn) = Sweep::new(here, at).next() else {
                return Vectors::All;
            };
            found = found.max(vectors(here, at));
            if found == Vectors::All {
                return found;
            }
            match insn.flow {
                Flow::Next => {}
                Flow::Branch(to) | Flow::Call(to) => open.push(to),
                Flow::Jump(to) => {
                    open.push(to);
                    break;
                }
                Flow::IndirectCall | Flow::IndirectJump => {
                    match constant(memory, maps, insn.reference) {
                        Some(to) => {
                            open.push(to);
                            if insn.flow == Flow::IndirectJump {
                                break;
                            }
                        }
                        None => return Vectors::All,
                    }
                }
                Flow::Return { .. } | Flow::Fault => break,
                Flow::Invalid => return Vectors::All,
            }
            at = insn.end();
        }
    }
    found
}

/// The address in a word of memory that is never written.
fn constant(memory: &Memory, maps: &[Mapping], reference: Reference) -> Option<u64> {
    let Reference::Memory(word) = reference else {
        return None;
    };
    maps::find(maps, word).filter(|map| !map.write)?;
    memory.read(word, 8).try_into().ok().map(u64::from_le_bytes)
}
