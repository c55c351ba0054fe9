//! Translations for who executes them without an engine: in one's own process, with nothing inserted.

use crate::process::EVERYWHERE;
use crate::protected::Notice;
use crate::table::Table;
use crate::translate::{Request, Set, first_bytes, translate_plain};

/// Code, and where its translation will be.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'p> {
    /// The program's code.
    pub code: &'p [u8],
    /// Its address.
    pub start: u64,
    /// The instruction that is executed first.
    pub first: u64,
    /// Where the translation will be.
    pub base: u64,
    /// Where the table of targets is: [`Targets`].
    pub table: u64,
}

/// A translation.
#[derive(Debug, Clone)]
pub struct Bare {
    /// The code.
    pub bytes: Vec<u8>,
    /// Instructions of the program, and where a jump leads that has them executed.
    pub instructions: Vec<(u64, u64)>,
    /// Instructions to which the program returns or that it begins with, and what the table has for them.
    pub targets: Vec<(u64, u64)>,
    /// Breakpoints, words that hold where to jump instead, as the table has it, and the instructions that come next.
    pub exits: Vec<[u64; 3]>,
    /// Breakpoints for a target that is not in the table, and where to continue when it is known.
    pub misses: Vec<(u64, u64)>,
}

/// Translates a piece.
pub(crate) fn translate_bare<S: Set>(piece: &Piece<'_>) -> Bare {
    /// The maximum number of instructions.
    const MOST: usize = 100;
    let translation = translate_plain::<S>(Request {
        starts: &[piece.first],
        profile: None,
        most: MOST,
        within: EVERYWHERE,
        base: piece.base,
        table: piece.table,
        read: &mut |pc| first_bytes(piece.code, piece.start, pc),
        known: &|_| None,
        soft: &|_| false,
        notice: &|_| Notice::Undecided,
        on_stack: false,
        mark: &|_| 0,
        insertion: None,
        keeps_flags: false,
        passes: None,
        file: &|_| None,
        watch: None,
        numbers: &mut |_| (0, 0),
        line_number: &mut |_| 0,
    });
    let exits = translation.exits.iter();
    let exits = exits.map(|exit| [exit.trap, exit.cell, exit.target]);
    Bare {
        exits: exits.collect(),
        bytes: translation.bytes,
        instructions: translation.instructions,
        targets: translation.returns,
        misses: translation.misses,
    }
}

/// What the table of targets has.
#[derive(Debug, Clone, Default)]
pub struct Targets(Table);

impl Targets {
    /// Bytes of the table.
    pub const SIZE: u64 = crate::table::SIZE;

    /// Puts a target into an entry, of two words: its address, and where it leads. Returns the offset of the entry.
    /// `None`: there is no room.
    pub fn put(&mut self, address: u64, at: u64) -> Option<u64> {
        self.0.put(address, at)
    }
}
