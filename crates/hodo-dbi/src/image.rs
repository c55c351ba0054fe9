//! Translations of a file's code that later runs use.
//!
//! An image has what an earlier run of the same program has translated of a mapping, for places of its own choice:
//! code, with the words that depend on places, and what the engine must know of it. All addresses are offsets, in the
//! code or in the mapping. It is used only for exactly the code that it was made from, which a hash of that says.

use std::ops::Range;

use hodo_abi::Span;
use hodo_module::cache::KeptCode;
use serde::{Deserialize, Serialize};

use crate::fixups::{Fixups, KINDS};
use crate::translate::State;

/// What an image has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Section {
    Code,
    /// Groups of points, and their bytes.
    Groups,
    Points,
    /// Instructions to which others lead, and their translations.
    Known,
    /// Breakpoints of exits, words that hold where to jump, and the two halves of the offset of the instruction that
    /// comes next: it may be outside of the mapping.
    Exits,
    /// Breakpoints before watched system calls, and the instructions that make these.
    Calls,
    /// Breakpoints where a target is missing in the table, and where to continue when it is known.
    Misses,
    /// Where calls return to, and the translation.
    Returns,
    /// Where the code of blocks begins, and their numbers; [`NO_BLOCK`] for other code.
    Places,
    /// Blocks by number: the first instruction; the numbers of instructions and of accesses, as two halves; the bytes
    /// of a record, or zero, if none is written.
    Blocks,
    /// Where code begins that writes a record.
    Records,
    /// Words of the code that depend on places: a section for each kind.
    Fixups,
}
pub(crate) const SECTIONS: usize = Section::Fixups as usize + KINDS;

/// The number of a block for code that is of none.
pub(crate) const NO_BLOCK: u32 = u32::MAX;

/// How the bytes of an image begin; its sections follow.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Bytes of the mapping.
    pub(crate) size: u64,
    /// For how many requests it was made.
    pub(crate) starts: usize,
    /// The code that it depends on, as offsets in the mapping and lengths, and the hash of that.
    pub(crate) pages: Vec<(u64, u64)>,
    pub(crate) source: u128,
    /// The states of points, from number 1 on.
    pub(crate) states: Vec<State>,
    /// Bytes of each section.
    pub(crate) sections: [u64; SECTIONS],
}

/// A stored image.
#[derive(Debug)]
pub(crate) struct Image {
    bytes: KeptCode,
    head: Head,
    sections: [Range<usize>; SECTIONS],
}

/// Entries of `N` words.
pub(crate) type List<const N: usize> = [[[u8; 4]; N]];

/// The entry that begins with a word, in a list that is sorted by the first words.
pub(crate) fn find<const N: usize>(list: &List<N>, first: u32) -> Option<[u32; N]> {
    let place = list.binary_search_by_key(&first, |entry| u32::from_le_bytes(entry[0]));
    list.get(place.ok()?)
        .map(|entry| entry.map(u32::from_le_bytes))
}

/// The word with these halves.
pub(crate) fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// The halves of a word.
pub(crate) fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

impl Image {
    /// An image from its bytes. `None`: they are damaged.
    pub(crate) fn read(bytes: KeptCode) -> Option<Self> {
        let (len, rest) = bytes.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let head: Head = postcard::from_bytes(rest.get(..len)?).ok()?;
        let mut end = 8 + len;
        let mut sections = [const { 0..0 }; SECTIONS];
        for (section, &len) in sections.iter_mut().zip(&head.sections) {
            *section = end..end.checked_add(usize::try_from(len).ok()?)?;
            end = section.end;
        }
        (end == bytes.len()).then_some(Self {
            bytes,
            head,
            sections,
        })
    }

    /// For how many requests it was made.
    pub(crate) fn starts(&self) -> usize {
        self.head.starts
    }

    /// The code of a mapping that it depends on. `None`: it is of another mapping.
    pub(crate) fn pages(&self, map: Span) -> Option<Vec<Span>> {
        let page = |&(start, len): &(u64, u64)| {
            let inside = start <= map.len() && len <= map.len() - start;
            inside.then(|| Span::at(map.start + start, len))
        };
        let pages = self.head.pages.iter().map(page).collect();
        (self.head.size == map.len()).then_some(pages)?
    }

    /// The hash of that code.
    pub(crate) fn source(&self) -> u128 {
        self.head.source
    }

    /// The states of its points, from number 1 on.
    pub(crate) fn states(&self) -> &[State] {
        &self.head.states
    }

    /// The bytes of a section.
    pub(crate) fn section(&self, section: usize) -> &[u8] {
        &self.bytes[self.sections[section].clone()]
    }

    /// The entries of a section.
    pub(crate) fn list<const N: usize>(&self, section: Section) -> &List<N> {
        let words = self.section(section as usize).as_chunks().0;
        words.as_chunks().0
    }

    /// Its code, not for any place.
    pub(crate) fn code(&self) -> &[u8] {
        self.section(Section::Code as usize)
    }

    /// The words of its code that depend on places.
    pub(crate) fn fixups(&self) -> Fixups {
        let kinds = std::array::from_fn(|kind| {
            let words = self.section(Section::Fixups as usize + kind).as_chunks();
            words.0.iter().copied().map(u32::from_le_bytes).collect()
        });
        Fixups(kinds)
    }
}
