//! How images are made.

use hodo_abi::Span;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::fixups::{Bases, Fixups};
use crate::image::{Head, NO_BLOCK, halves, join};
use crate::translate::{Point, Points, Translation};

/// Translations begin at multiples of this.
const ALIGNMENT: u64 = 16;
const PAGE: u64 = 4096;

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
    places: Vec<[u32; 2]>,
    blocks: Vec<[u32; 3]>,
    records: Vec<u32>,
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
            places: Vec::new(),
            blocks: Vec::new(),
            records: Vec::new(),
            instructions: FxHashMap::default(),
            entries: FxHashSet::default(),
            pages: Vec::new(),
        }
    }

    /// Adds a translation that will be at an address, made from these pages. `None`: it does not follow the one before,
    /// or more than its code depends on it.
    pub(crate) fn add(&mut self, at: u64, translation: &Translation, pages: &[u64]) -> Option<()> {
        if translation.stays {
            return None;
        }
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
        self.points.extend(points);
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
        for (at, block) in &translation.blocks {
            let number = block.as_ref().map(|block| block.id - self.bases.block);
            self.places.push([cache(*at), number.unwrap_or(NO_BLOCK)]);
            if let (Some(block), Some(number)) = (block, number) {
                if number as usize != self.blocks.len() {
                    return None;
                }
                let accesses = block.plain_accesses(block.insns.len()).count();
                let sizes = (block.insns.len() as u32) << 16 | u16::try_from(accesses).ok()? as u32;
                let record = match block.is_special() {
                    true => block.record_size() as u32,
                    false => 0,
                };
                self.blocks
                    .push([original(block.insns[0].pc), sizes, record]);
            }
        }
        let records = translation.records.iter();
        self.records.extend(records.map(|&at| cache(at)));
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
        let points = self.points.parts();
        let groups = (0..points.count).map(points.group).map(|group| {
            let [low, high] = halves(group.original);
            [group.at as u32, group.bytes as u32, low, high]
        });
        let fixups = self.fixups.0.iter().map(|places| words(places));
        let sections = [
            self.code,
            words(groups.collect::<Vec<_>>().as_flattened()),
            points.bytes.to_vec(),
            words(known.as_flattened()),
            words(self.exits.as_flattened()),
            words(self.calls.as_flattened()),
            words(self.misses.as_flattened()),
            words(self.returns.as_flattened()),
            words(self.places.as_flattened()),
            words(self.blocks.as_flattened()),
            words(&self.records),
        ];
        let sections: Vec<Vec<u8>> = sections.into_iter().chain(fixups).collect();
        let head = Head {
            size: map.len(),
            starts,
            pages: pages.collect(),
            source,
            states: points.states.to_vec(),
            sections: std::array::from_fn(|number| sections[number].len() as u64),
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
