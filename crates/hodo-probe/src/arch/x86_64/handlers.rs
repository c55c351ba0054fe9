//! Reads the code of handlers to find which vector registers they may change.

use hodo_isa::native::scan::{Flow, Reference, Sweep};
use hodo_isa::native::vectors::{Vectors, vectors};

use crate::layout::{KEEP_ALL, KEEP_NONE, KEEP_SOME};

/// The most bytes that one step examines.
pub(crate) const MOST_BYTES: usize = 15;

/// An instruction.
pub(crate) struct Look {
    /// One of `KEEP_…`.
    pub keep: u32,
    pub flow: Flow,
    /// The memory word that it uses.
    pub word: Option<u64>,
    /// The address after it.
    pub end: u64,
}

/// Looks at the instruction at the start of `code`.
pub(crate) fn look(code: &[u8], addr: u64) -> Option<Look> {
    let insn = Sweep::new(code, addr).next()?;
    Some(Look {
        keep: match vectors(code, addr) {
            Vectors::None => KEEP_NONE,
            Vectors::Lower => KEEP_SOME,
            Vectors::All => KEEP_ALL,
        },
        flow: insn.flow,
        word: match insn.reference {
            Reference::Memory(word) => Some(word),
            _ => None,
        },
        end: insn.end(),
    })
}
