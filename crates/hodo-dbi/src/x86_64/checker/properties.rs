//! Random fragments with random passes.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};

use super::super::block as thread;
use super::samples::{Random, passes, program};
use super::{BASE, Emitted};
use crate::passes::Moved;

fn random(seed: u64) -> Emitted {
    let mut random = Random::new(seed);
    let code = program(&mut random);
    Emitted::new(&code, passes(&mut random), seed % 2 == 1)
}

fn check(seeds: std::ops::Range<u64>) {
    let mut count = 0;
    for seed in seeds.clone() {
        match random(seed).check() {
            Ok(instructions) => count += instructions,
            Err(wrong) => panic!("seed {seed}: {wrong}"),
        }
    }
    assert!(count > 100 * seeds.count(), "there is little code: {count}");
}

#[test]
fn the_map_says_where_values_are() {
    check(0..4000);
}

/// Begins at the number that `HODO_FRAGMENTS` has.
#[test]
#[ignore = "minutes; after a change of what becomes of inserted code"]
fn the_map_says_where_values_are_in_many_fragments() {
    let first = std::env::var("HODO_FRAGMENTS");
    let first = first.map_or(4000, |first| first.parse().expect("a number"));
    check(first..first + 300_000);
}

impl Emitted {
    /// What the maps of points say: the map's number, and the entry.
    fn entries(&self) -> Vec<(usize, usize)> {
        let points = self.translation.points.iter();
        let used = points.filter_map(|point| Some(point.state.inside?.map as usize));
        let used: BTreeSet<usize> = used.collect();
        let entries = used.into_iter().flat_map(|number| {
            let count = self.maps[number].len();
            (0..count).map(move |entry| (number, entry))
        });
        entries.collect()
    }

    /// Moves of the program's values to slots and back: where the offset of the slot is in the translation, and whether
    /// it is a store.
    fn moves(&self) -> Vec<(usize, bool)> {
        let first = u64::from(thread::FIRST_SPILL);
        let slots = first..first + 8 * u64::from(thread::SPILLS);
        let decoder = Decoder::with_ip(64, &self.translation.bytes, BASE, DecoderOptions::NONE);
        let moves = decoder.into_iter().filter(|insn| {
            insn.mnemonic() == Mnemonic::Mov
                && insn.segment_prefix() == Register::GS
                && slots.contains(&insn.memory_displacement64())
        });
        let mut stored = BTreeSet::new();
        let moves = moves.filter_map(|insn| {
            let is_store = insn.op0_kind() == OpKind::Memory;
            let (before, after) = (self.named(insn.ip()), self.named(insn.next_ip()));
            let slot = ((insn.memory_displacement64() - first) / 8) as u8;
            // A program's value goes there, or has been there.
            let is_of_program = match is_store {
                // It may have been there before.
                true => stored.insert(slot) && after.contains(&slot) && !before.contains(&slot),
                false => before.contains(&slot) && !after.contains(&slot),
            };
            is_of_program.then(|| ((insn.next_ip() - 4 - BASE) as usize, is_store))
        });
        moves.collect()
    }

    /// The slots that the map names at an address.
    fn named(&self, at: u64) -> Vec<u8> {
        let map = self
            .point(at)
            .and_then(|point| self.maps.get(point.state.inside?.map as usize));
        map.map_or(Vec::new(), |map| {
            map.iter().map(|(_, slot)| *slot).collect()
        })
    }
}

/// A slot that random fragments do not use.
const UNUSED: u8 = thread::SPILLS as u8 - 1;

/// A change of the map, of a spill or of a restore is found: the checks can fail.
#[test]
fn mistakes_are_found() {
    let (mut maps, mut lanes, mut stores, mut loads) = (0, 0, 0, 0);
    for seed in 0..150 {
        let emitted = random(seed);
        for (number, entry) in emitted.entries() {
            let mut wrong = random(seed);
            let (moved, slot) = &mut wrong.maps[number][entry];
            if let Moved::Lanes(_, complete) = moved {
                *complete ^= 1;
                lanes += 1;
            } else {
                *slot = UNUSED;
                maps += 1;
            }
            assert!(wrong.check().is_err(), "seed {seed}: map {number} {entry}");
        }
        for (at, is_store) in emitted.moves() {
            let mut wrong = random(seed);
            let place = thread::FIRST_SPILL + 8 * u32::from(UNUSED);
            wrong.translation.bytes[at..at + 4].copy_from_slice(&place.to_le_bytes());
            assert!(wrong.check().is_err(), "seed {seed}: move at {at:#x}");
            *(if is_store { &mut stores } else { &mut loads }) += 1;
        }
    }
    assert!(
        maps > 300 && lanes > 20 && stores > 300 && loads > 100,
        "{maps} {lanes} {stores} {loads}"
    );
}
