//! Parts of the cache.

use std::sync::Arc;

use hodo_abi::Span;

use crate::block::Block;
use crate::placed::Placed;
use crate::translate::{Point, Points, Translation};

/// Bytes of a region that can be accessed at first. Later, their number is a multiple of this,
pub(crate) const STEP: u64 = 128 << 10;
/// and at most this much is added that is not needed yet.
const MOST_MORE: u64 = 1 << 20;

/// Part of the cache.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    pub(crate) span: Span,
    /// Bytes from the start that are in use.
    pub(crate) used: u64,
    /// Bytes from the start that can be accessed. What is not in use is not there for the program, as far as possible.
    open: u64,
    points: Points,
    /// Where the code of blocks begins, in ascending order.
    blocks: Vec<(u64, Option<Arc<Block>>)>,
    /// Where code begins that writes a record, in ascending order.
    records: Vec<u64>,
    /// It has translations of an earlier run, and nothing else.
    pub(crate) image: Option<Placed>,
}

impl Region {
    /// A region of which `used` bytes are in use, and of which this part can be accessed.
    pub(crate) fn new(span: Span, used: u64, open: Span) -> Self {
        Self {
            span,
            used,
            open: open.len(),
            points: Points::default(),
            blocks: Vec::new(),
            records: Vec::new(),
            image: None,
        }
    }

    /// Where the next translation will be.
    pub(crate) fn next(&self) -> u64 {
        self.span.start + self.used
    }

    /// Whether there is room for this many bytes.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.image.is_none() && self.used + bytes <= self.span.len()
    }

    /// What can be accessed.
    pub(crate) fn open(&self) -> Span {
        Span::at(self.span.start, self.open)
    }

    /// What must become accessible before so many bytes are added, if anything must. It is, from now on. The number of
    /// these steps is small.
    pub(crate) fn grow(&mut self, bytes: u64) -> Option<Span> {
        let needed = self.used + bytes;
        if needed <= self.open {
            return None;
        }
        let more = self.open.min(MOST_MORE);
        let open = needed.max(self.open + more).next_multiple_of(STEP);
        let before = std::mem::replace(&mut self.open, open.min(self.span.len()));
        Some(Span::from(self.span.start + before..self.open().end))
    }

    /// Where this number of bytes would begin at the end.
    pub(crate) fn end_for(&self, bytes: u64) -> u64 {
        const PAGE: u64 = 4096;
        self.span.end - bytes.next_multiple_of(PAGE)
    }

    /// Takes bytes from the end, for a region of their own.
    pub(crate) fn split(&mut self, bytes: u64) -> Span {
        let start = self.end_for(bytes);
        let span = Span::from(start..self.span.end);
        self.span = Span::from(self.span.start..start);
        self.open = self.open.min(self.span.len());
        span
    }

    /// A translation is there from now on.
    pub(crate) fn add(&mut self, translation: &mut Translation) {
        let used = self.used + translation.bytes.len() as u64;
        self.used = used.next_multiple_of(16);
        self.points.extend(translation.points.iter().copied());
        self.blocks.append(&mut translation.blocks);
        self.records.append(&mut translation.records);
    }

    /// The state of a thread that is at this address.
    pub(crate) fn point(&self, at: u64) -> Option<Point> {
        match &self.image {
            Some(image) => image.point(at),
            None => self.points.at_or_before(at),
        }
    }

    /// The block to which the code at this address belongs.
    pub(crate) fn block_at(&self, at: u64) -> Option<Arc<Block>> {
        if let Some(image) = &self.image {
            return image.block_at(at);
        }
        let next = self.blocks.partition_point(|(start, _)| *start <= at);
        self.blocks.get(next.checked_sub(1)?)?.1.clone()
    }

    /// Where the code begins that writes a record, and that a thread is in that is at this address.
    pub(crate) fn record_start(&self, at: u64) -> Option<u64> {
        if let Some(image) = &self.image {
            return image.record_start(at);
        }
        let next = self.records.partition_point(|start| *start <= at);
        self.records.get(next.checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_used_cannot_be_accessed() {
        let span = Span::at(0x10000, 8 << 20);
        let mut region = Region::new(span, 64, Span::at(span.start, STEP));
        assert_eq!(region.grow(1000), None);
        let more = region.grow(STEP).expect("there is no room");
        assert_eq!(more, Span::at(span.start + STEP, STEP));
        assert_eq!(region.open(), Span::at(span.start, 2 * STEP));
        region.used = region.open().len();
        let mut steps = 0;
        while region.has_room(1000) {
            steps += u32::from(region.grow(1000).is_some());
            region.used += 1000;
            assert!(region.open().end >= region.next());
            assert!(region.open().end <= region.next() + MOST_MORE + 2 * STEP);
        }
        assert!(steps < 16, "{steps}");
        assert!(region.open().end <= span.end);
    }
}
