//! One cache, and the lines in it.

use crate::model::{Geometry, MOST_LINES};
use crate::replacement::{Place, Policy, Sets};

/// A cache.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    /// The line as a power of two.
    pub(super) shift: u32,
    /// The lines. Their tags are one more than their numbers.
    lines: Sets,
    /// The line of each set that was used last. If it is used again, nothing changes, whatever the policy.
    recent: Vec<u64>,
    /// How often anything may have changed.
    pub(super) changes: u64,
}

impl Cache {
    pub(super) fn new(geometry: Geometry, policy: Policy) -> Self {
        let sets = geometry.sets();
        Self {
            shift: geometry.line.trailing_zeros(),
            lines: Sets::new(policy, sets, geometry.ways as usize),
            recent: vec![0; sets as usize],
            changes: 0,
        }
    }

    /// Whether an access changes nothing, because it is of one line, the one of its set that was used last.
    #[inline(always)]
    pub(super) fn changes_nothing(&self, address: u64, size: u32) -> bool {
        let (first, last) = self.lines_of(address, size);
        self.is_recent(first, last)
    }

    /// The same with the first line and the last one.
    #[inline(always)]
    pub(super) fn is_recent(&self, first: u64, last: u64) -> bool {
        first == last && self.recent[self.lines.set(first)] == first + 1
    }

    /// The first line of an access, and the last one.
    #[inline(always)]
    fn lines_of(&self, address: u64, size: u32) -> (u64, u64) {
        let last = address.wrapping_add(u64::from(size.max(1)) - 1);
        (address >> self.shift, last >> self.shift)
    }

    /// Uses a line. Returns whether it was there.
    #[inline(always)]
    pub(super) fn touch(&mut self, line: u64) -> bool {
        let set = self.lines.set(line);
        let tag = line + 1;
        if self.recent[set] == tag {
            return true;
        }
        self.recent[set] = tag;
        self.changes += 1;
        self.lines.touch(set, tag)
    }

    /// An access. Returns whether all of it was there.
    #[inline(always)]
    pub(super) fn access(&mut self, address: u64, size: u32) -> bool {
        let (first, last) = self.lines_of(address, size);
        self.lines(first, last)
    }

    /// The same with the first line and the last one.
    pub(super) fn lines(&mut self, first: u64, last: u64) -> bool {
        let hits = self.touch(first);
        if first == last {
            return hits;
        }
        self.access_more(first, last) && hits
    }

    /// The same. The first line is looked for where it was before, first.
    #[inline(always)]
    pub(super) fn lines_near(&mut self, first: u64, last: u64, place: &mut Place) -> bool {
        let set = self.lines.set(first);
        let tag = first + 1;
        let hits = if self.lines.uses_at(set, *place, tag) {
            self.changes += u64::from(self.recent[set] != tag);
            self.recent[set] = tag;
            true
        } else {
            let hits = self.touch(first);
            *place = self.lines.place(set, tag);
            hits
        };
        if first == last {
            return hits;
        }
        self.access_more(first, last) && hits
    }

    /// The lines after the first one.
    fn access_more(&mut self, first: u64, last: u64) -> bool {
        let mut hits = true;
        let mut line = first;
        while line != last && line.wrapping_sub(first) < MOST_LINES as u64 - 1 {
            line = line.wrapping_add(1);
            hits &= self.touch(line);
        }
        hits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places are remembered rightly, and those of lines that have given way or moved are not used.
    #[test]
    fn remembered_places_change_nothing() {
        let geometry = Geometry {
            size: 64 * 16,
            ways: 4,
            line: 64,
        };
        for policy in [Policy::Lru, Policy::Fifo, Policy::TreePlru, Policy::Random] {
            let [mut near, mut plain] = [(); 2].map(|()| Cache::new(geometry, policy));
            let mut places = [Place::NOWHERE; 64];
            let (mut random, mut hits) = (1u64, 0);
            for _ in 0..20_000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let first = random >> 33 & 31;
                let last = first + u64::from(random >> 40 & 7 == 0);
                // Several places have the same line.
                let place = &mut places[(random >> 50 & 32 | first) as usize];
                let hit = plain.lines(first, last);
                assert_eq!(near.lines_near(first, last, place), hit, "{policy:?}");
                assert_eq!(near.changes, plain.changes, "{policy:?}");
                hits += u32::from(hit);
            }
            assert!((1000..19_000).contains(&hits), "{policy:?}: {hits}");
        }
    }
}
