//! One cache, and the lines in it.

use crate::model::{Geometry, MOST_LINES};
use crate::replacement::{Policy, Sets};

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
