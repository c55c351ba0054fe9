//! Which registers besides the general ones code may change, so that only those are kept around a call of it: reads a
//! function with all that it calls.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::effects::{Flow, Vectors};
use crate::native::vectors::{MOST_BYTES, look};

/// Instructions that are examined before code is assumed to change everything.
const MOST: usize = 4000;
/// Bytes that are read at a time.
const CHUNK: usize = 128;

/// The code and the constants that are read.
pub trait Source {
    /// Up to `len` bytes of code at an address, as they are if no tool has changed them.
    fn code(&mut self, addr: u64, len: usize) -> Vec<u8>;

    /// The address in a word of memory that is never written; none if it may be.
    fn constant(&mut self, word: u64) -> Option<u64>;
}

/// What the function at an address may change, by its code and that of its callees. What cannot be followed may change
/// everything.
pub fn vectors(start: u64, source: &mut dyn Source) -> Vectors {
    let mut seen = BTreeSet::new();
    let mut open = vec![start];
    let mut found = Vectors::None;
    while let Some(at) = open.pop() {
        let mut at = at;
        let mut code: Vec<u8> = Vec::new();
        let mut base = at;
        while seen.insert(at) {
            if seen.len() > MOST {
                return Vectors::All;
            }
            if ((at - base) as usize) + MOST_BYTES > code.len() {
                base = at;
                code = source.code(at, CHUNK);
            }
            let here = code.get((at - base) as usize..).unwrap_or_default();
            let Some(insn) = look(here, at) else {
                return Vectors::All;
            };
            found = found.max(insn.vectors);
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
                    let Some(to) = insn.word.and_then(|word| source.constant(word)) else {
                        return Vectors::All;
                    };
                    open.push(to);
                    if insn.flow == Flow::IndirectJump {
                        break;
                    }
                }
                Flow::Return { .. } | Flow::Fault => break,
                Flow::Invalid => return Vectors::All,
            }
            at = insn.end;
        }
    }
    found
}
