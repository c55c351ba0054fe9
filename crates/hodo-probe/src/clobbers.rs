//! Which vector registers a handler may change, judged by its code and that of its callees, so that only those are
//! saved around it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use hodo_isa::native::scan::Flow;

use super::arch::handlers::{MOST_BYTES, look};
use super::layout::{Handler, KEEP_ALL, KEEP_NONE};
use super::maps::{self, Mapping};
use super::memory::Memory;

/// Instructions that are examined before a handler is assumed to change everything.
const MOST: usize = 4000;
/// Bytes that are read at a time.
const CHUNK: usize = 128;

/// What is known about handlers: by address, with their first bytes, because another module may be there later.
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
        let keep = walk(memory, maps, addr);
        self.0.insert(addr, (bytes, keep));
        keep
    }
}

fn walk(memory: &Memory, maps: &[Mapping], start: u64) -> u32 {
    let mut seen = BTreeSet::new();
    let mut open = vec![start];
    let mut found = KEEP_NONE;
    while let Some(at) = open.pop() {
        let mut at = at;
        let mut code: Vec<u8> = Vec::new();
        let mut base = at;
        loop {
            if !seen.insert(at) {
                break;
            }
            if seen.len() > MOST {
                return KEEP_ALL;
            }
            if ((at - base) as usize) + MOST_BYTES > code.len() {
                base = at;
                code = super::site::original_code(memory, at..at + CHUNK as u64);
            }
            let here = code.get((at - base) as usize..).unwrap_or_default();
            let Some(insn) = look(here, at) else {
                return KEEP_ALL;
            };
            found = found.max(insn.keep);
            if found == KEEP_ALL {
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
                    match constant(memory, maps, insn.word) {
                        Some(to) => {
                            open.push(to);
                            if insn.flow == Flow::IndirectJump {
                                break;
                            }
                        }
                        None => return KEEP_ALL,
                    }
                }
                Flow::Return { .. } | Flow::Fault => break,
                Flow::Invalid => return KEEP_ALL,
            }
            at = insn.end;
        }
    }
    found
}

/// The address held by a word of memory that is never written.
fn constant(memory: &Memory, maps: &[Mapping], word: Option<u64>) -> Option<u64> {
    let word = word?;
    maps::find(maps, word).filter(|map| !map.write)?;
    memory.read(word, 8).try_into().ok().map(u64::from_le_bytes)
}
