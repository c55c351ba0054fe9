//! The regions of the cache.

use std::ops::{Index, IndexMut};

use hodo_abi::Span;
use rustc_hash::FxHashSet;

use super::ROOM;
use crate::placed::Placed;
use crate::places::{self, REACH, REGION};
use crate::region::Region;

/// The regions of the cache, by number.
#[derive(Debug, Clone, Default)]
pub(super) struct Cache {
    regions: Vec<Region>,
    /// Code near which there is no room: addresses, divided by [`REACH`].
    lonely: FxHashSet<u64>,
}

impl Cache {
    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// All regions.
    pub(super) fn all(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter()
    }

    /// Where all regions are.
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> {
        self.all().map(|region| region.span)
    }

    /// The part of the cache that has this address.
    pub(super) fn region_of(&self, at: u64) -> Option<&Region> {
        self.all().find(|region| region.span.contains(at))
    }

    /// The image that has this address in the cache.
    pub(super) fn image_of(&self, at: u64) -> Option<&Placed> {
        self.region_of(at)?.image.as_ref()
    }

    /// There is another region.
    pub(super) fn add(&mut self, region: Region) {
        self.regions.push(region);
    }

    /// There is no room near this address.
    pub(super) fn note_lonely(&mut self, near: u64) {
        self.lonely.insert(near / REACH);
    }

    /// The region for the translation of code at an address. `room`: bytes that are needed there.
    pub(super) fn region_for(&self, pc: u64, room: u64) -> Option<usize> {
        self.regions.iter().position(|region| {
            let far = region
                .span
                .start
                .abs_diff(pc)
                .max(region.span.end.abs_diff(pc));
            far < REACH + REGION && region.has_room(room)
        })
    }

    /// The region for the translation of code at an address, or one that is far from it if there is no room near it.
    pub(super) fn any_region_for(&self, pc: u64) -> Option<usize> {
        self.region_for(pc, ROOM).or_else(|| {
            let mut regions = self.regions.iter();
            let lonely = self.lonely.contains(&(pc / REACH));
            let is_far = |region: &Region| places::is_away(region.span) && region.has_room(ROOM);
            lonely.then(|| regions.position(is_far))?
        })
    }
}

impl Index<usize> for Cache {
    type Output = Region;

    fn index(&self, number: usize) -> &Region {
        &self.regions[number]
    }
}

impl IndexMut<usize> for Cache {
    fn index_mut(&mut self, number: usize) -> &mut Region {
        &mut self.regions[number]
    }
}
