//! Translations of a file's code that later runs use.
//!
//! An image has what an earlier run of the same program has translated of a mapping, for places of its own choice: code,
//! with the words that depend on places, and what the engine must know of it. All addresses are offsets, in the code or
//! in the mapping. It is used only for exactly the code that it was made from, which a hash of that says.

use std::ops::Range;
use std::rc::Rc;

use hodo_abi::Span;
use hodo_module::cache::KeptCode;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use crate::fixups::{Bases, Fixups};
use crate::native::translate::{Point, Translation};
use crate::points::{self, Points, State};

/// Translations begin at multiples of this.
const ALIGNMENT: u64 = 16;
const PAGE: u64 = 4096;

/// What an image has.
#[derive(Debug, Clone, Copy)]
enum Section {
    Code,
    /// Groups of points, and their bytes.
    Groups,
    Points,
    /// Instructions to which others lead, and their translations.
    Known,
    /// Breakpoints of exits, words that hold where to jump, and the two halves of the offset of the instruction that comes
    /// next: it may be outside of the mapping.
    Exits,
    /// Breakpoints before watched system calls, and the instructions that make these.
    Calls,
    /// Breakpoints where a target is missing in the table, and where to continue when it is known.
    Misses,
    /// Where calls return to, and the translation.
    Returns,
    /// Words of the code that depend on places: four sections.
    Fixups,
}
const SECTIONS: usize = Section::Fixups as usize + 4;

/// How the bytes of an image begin; its sections follow.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    /// Bytes of the mapping.
    size: u64,
    /// For how many requests it was made.
    starts: usize,
    /// The code that it depends on, as offsets in the mapping and lengths, and the hash of that.
    pages: Vec<(u64, u64)>,
    source: u128,
    states: Vec<State>,
    /// Bytes of each section.
    sections: [u64; SECTIONS],
}

/// A stored image.
#[derive(Debug)]
pub(crate) struct Image {
    bytes: KeptCode,
    head: Head,
    sections: [Range<usize>; SECTIONS],
}

/// Entries of `N` words.
type List<const N: usize> = [[[u8; 4]; N]];

/// The entry that begins with a word, in a list that is sorted by the first words.
fn find<const N: usize>(list: &List<N>, first: u32) -> Option<[u32; N]> {
    let place = list.binary_search_by_key(&first, |entry| u32::from_le_bytes(entry[0]));
    list.get(place.ok()?)
        .map(|entry| entry.map(u32::from_le_bytes))
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// The halves of a word.
fn halves(word: u64) -> [u32; 2] {
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

    /// The hash of that.
    pub(crate) fn source(&self) -> u128 {
        self.head.source
    }

    fn section(&self, section: usize) -> &[u8] {
        &self.bytes[self.sections[section].clone()]
    }

    fn list<const N: usize>(&self, section: Section) -> &List<N> {
        let words = self.section(section as usize).as_chunks().0;
        words.as_chunks().0
    }

    /// Its code, not for any place.
    pub(crate) fn code(&self) -> &[u8] {
        self.section(Section::Code as usize)
    }

    /// The words of its code that depend on places.
    pub(crate) fn fixups(&self) -> Fixups {
        let kinds = [0, 1, 2, 3].map(|kind| {
            let words = self.section(Section::Fixups as usize + kind).as_chunks();
            words.0.iter().copied().map(u32::from_le_bytes).collect()
        });
        Fixups(kinds)
    }
}

/// An image in a process.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    image: Rc<Image>,
    /// Where its code is,
    at: u64,
    /// and the program's.
    pub(crate) map: Span,
    /// Instructions that it does not have, and words of exits to them; sorted.
    open: Rc<Vec<(u64, u64)>>,
}

impl Placed {
    /// An image of this code, whose translation is at an address.
    pub(crate) fn new(image: Image, at: u64, map: Span) -> Self {
        let mut open = Vec::new();
        for entry in image.list::<4>(Section::Exits) {
            let [trap, cell, low, high] = entry.map(u32::from_le_bytes);
            let word = image.code().get(cell as usize..);
            let word = word.and_then(|word| word.first_chunk::<8>());
            if word == Some(&u64::from(trap).to_le_bytes()) {
                let target = map.start.wrapping_add(join(low, high));
                open.push((target, at + u64::from(cell)));
            }
        }
        open.sort_unstable();
        Self {
            image: Rc::new(image),
            at,
            map,
            open: Rc::new(open),
        }
    }

    fn offset(&self, at: u64) -> Option<u32> {
        u32::try_from(at.checked_sub(self.at)?).ok()
    }

    /// The state of a thread that is at this address.
    pub(crate) fn point(&self, at: u64) -> Option<Point> {
        let image = &self.image;
        let groups = image.list(Section::Groups);
        let group = |number: usize| {
            let [at, bytes, low, high] = groups[number].map(u32::from_le_bytes);
            points::Group {
                at: at.into(),
                original: join(low, high),
                bytes: bytes as usize,
            }
        };
        let bytes = image.section(Section::Points as usize);
        let at = at.checked_sub(self.at)?;
        let point = points::find(groups.len(), group, bytes, &image.head.states, at)?;
        Some(Point {
            at: self.at + point.at,
            original: self.map.start.wrapping_add(point.original),
            ..point
        })
    }

    /// Where an instruction was translated to.
    pub(crate) fn known(&self, pc: u64) -> Option<u64> {
        let pc = u32::try_from(pc.checked_sub(self.map.start)?).ok()?;
        let [_, at] = find(self.image.list(Section::Known), pc)?;
        Some(self.at + u64::from(at))
    }

    /// The instruction that comes next at the breakpoint of an exit.
    pub(crate) fn exit(&self, trap: u64) -> Option<u64> {
        let [_, _, low, high] = find(self.image.list(Section::Exits), self.offset(trap)?)?;
        Some(self.map.start.wrapping_add(join(low, high)))
    }

    /// The instruction that makes the system call after a breakpoint.
    pub(crate) fn call(&self, trap: u64) -> Option<u64> {
        let [_, at] = find(self.image.list(Section::Calls), self.offset(trap)?)?;
        Some(self.at + u64::from(at))
    }

    /// Where a thread continues that misses a target at a breakpoint.
    pub(crate) fn miss(&self, trap: u64) -> Option<u64> {
        let [_, at] = find(self.image.list(Section::Misses), self.offset(trap)?)?;
        Some(self.at + u64::from(at))
    }

    /// For how many requests it was made.
    pub(crate) fn starts(&self) -> usize {
        self.image.starts()
    }

    /// Where calls return to, and the translation.
    pub(crate) fn returns(&self) -> impl Iterator<Item = (u64, u64)> {
        self.image.list(Section::Returns).iter().map(|entry| {
            let [pc, at] = entry.map(u32::from_le_bytes).map(u64::from);
            (self.map.start + pc, self.at + at)
        })
    }

    /// Words of exits to an instruction that the image does not have.
    pub(crate) fn waiting(&self, pc: u64) -> impl Iterator<Item = u64> {
        let first = self.open.partition_point(|&(target, _)| target < pc);
        let open = self.open[first..].iter();
        let open = open.take_while(move |&&(target, _)| target == pc);
        open.map(|&(_, cell)| cell)
    }

    /// Instructions that the image does not have, and words of exits to them.
    pub(crate) fn open(&self) -> &[(u64, u64)] {
        &self.open
    }

    /// The words of exits, and their breakpoints.
    pub(crate) fn cells(&self) -> impl Iterator<Item = (u64, u64)> {
        let exits = self.image.list::<4>(Section::Exits).iter();
        exits.map(|entry| {
            let [trap, cell, ..] = entry.map(u32::from_le_bytes).map(u64::from);
            (self.at + cell, self.at + trap)
        })
    }
}

/// An image that is being made: pieces of code that follow each other.
#[derive(Debug)]
pub(crate) struct Making {
    bases: Bases,
    map: Span,
    code: Vec<u8>,
    fixups: Fixups,
    points: Points,
    exits: Vec<[u32; 4]>,
    calls: Vec<[u32; 2]>,
    misses: Vec<[u32; 2]>,
    returns: Vec<[u32; 2]>,
    instructions: FxHashMap<u32, u32>,
    /// Instructions to which others lead.
    entries: FxHashSet<u64>,
    /// Pages of the program's code that were read.
    pages: Vec<u64>,
}

impl Making {
    /// Begins an image of the code in a mapping.
    pub(crate) fn new(bases: Bases, map: Span) -> Self {
        Self {
            bases,
            map,
            code: Vec::new(),
            fixups: Fixups::default(),
            points: Points::default(),
            exits: Vec::new(),
            calls: Vec::new(),
            misses: Vec::new(),
            returns: Vec::new(),
            instructions: FxHashMap::default(),
            entries: FxHashSet::default(),
            pages: Vec::new(),
        }
    }

    /// Adds a translation that will be at an address, made from these pages. `None`: it does not follow the one before.
    pub(crate) fn add(&mut self, at: u64, translation: &Translation, pages: &[u64]) -> Option<()> {
        let end = self.bases.cache + self.code.len() as u64;
        if at < end || at - end >= ALIGNMENT || self.map.len() > u64::from(u32::MAX) {
            return None;
        }
        let cache = |at: u64| (at - self.bases.cache) as u32;
        let original = |pc: u64| (pc - self.map.start) as u32;
        self.code.resize(cache(at) as usize, 0);
        self.code.extend(&translation.bytes);
        self.fixups.extend(cache(at).into(), &translation.fixups);
        let points = translation.points.iter().map(|point| Point {
            at: cache(point.at).into(),
            original: point.original.wrapping_sub(self.map.start),
            ..*point
        });
        let points: Vec<Point> = points.collect();
        self.points.extend(&points);
        let instructions = translation.instructions.iter();
        let instructions = instructions.map(|&(pc, at)| (original(pc), cache(at)));
        self.instructions.extend(instructions);
        self.entries.extend(&translation.entries);
        self.exits.extend(translation.exits.iter().map(|exit| {
            let [low, high] = halves(exit.target.wrapping_sub(self.map.start));
            [cache(exit.trap), cache(exit.cell), low, high]
        }));
        let two = |&(trap, at): &(u64, u64)| [cache(trap), cache(at)];
        self.calls.extend(translation.calls.iter().map(two));
        self.misses.extend(translation.misses.iter().map(two));
        let returns = translation.returns.iter();
        let returns = returns.map(|&(pc, at)| [original(pc), cache(at)]);
        self.returns.extend(returns);
        self.pages.extend(pages);
        Some(())
    }

    /// The program's code that the image depends on.
    pub(crate) fn pages(&mut self) -> Vec<Span> {
        self.pages.sort_unstable();
        self.pages.dedup();
        let runs = self.pages.chunk_by(|a, b| a + PAGE == *b);
        runs.map(|run| Span::from(run[0]..run[run.len() - 1] + PAGE))
            .collect()
    }

    /// Ends the image. Returns its bytes. `entries`: instructions to which others lead, too; `starts`: for how many
    /// requests it was made; `source`: the hash of the code.
    pub(crate) fn end(
        mut self,
        entries: impl Iterator<Item = u64>,
        starts: usize,
        source: u128,
    ) -> Option<Vec<u8>> {
        let map = self.map;
        let pages = self.pages().into_iter();
        let pages = pages.map(|span| (span.start - map.start, span.len()));
        self.entries.extend(entries);
        let inside = self.entries.iter().filter(|&&pc| map.contains(pc));
        let known = inside.filter_map(|pc| {
            let pc = (pc - map.start) as u32;
            Some([pc, *self.instructions.get(&pc)?])
        });
        let mut known: Vec<[u32; 2]> = known.collect();
        known.sort_unstable();
        self.exits.sort_unstable();
        self.calls.sort_unstable();
        self.misses.sort_unstable();
        // All exits to what is here lead there.
        for &[trap, cell, low, high] in &self.exits {
            let target = u32::try_from(join(low, high)).ok();
            let to = target.and_then(|target| self.instructions.get(&target));
            let to = self.bases.cache + u64::from(*to.unwrap_or(&trap));
            let word = self.code.get_mut(cell as usize..)?;
            *word.first_chunk_mut::<8>()? = to.to_le_bytes();
        }
        let fixups = &self.fixups;
        fixups.apply(&mut self.code, self.bases, Bases::default())?;
        let (groups, points, states) = self.points.parts();
        let groups = groups.map(|group| {
            let [low, high] = halves(group.original);
            [group.at as u32, group.bytes as u32, low, high]
        });
        let [distances, originals, addresses, table] = self.fixups.0.each_ref();
        let sections = [
            self.code,
            words(groups.collect::<Vec<_>>().as_flattened()),
            points.to_vec(),
            words(known.as_flattened()),
            words(self.exits.as_flattened()),
            words(self.calls.as_flattened()),
            words(self.misses.as_flattened()),
            words(self.returns.as_flattened()),
            words(distances),
            words(originals),
            words(addresses),
            words(table),
        ];
        let head = Head {
            size: map.len(),
            starts,
            pages: pages.collect(),
            source,
            states: states.to_vec(),
            sections: sections.each_ref().map(|section| section.len() as u64),
        };
        let head = postcard::to_allocvec(&head).ok()?;
        let mut bytes = (head.len() as u64).to_le_bytes().to_vec();
        bytes.extend(head);
        bytes.extend(sections.concat());
        Some(bytes)
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
