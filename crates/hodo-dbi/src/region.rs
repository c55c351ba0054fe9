//! Parts of the cache.

use std::sync::Arc;

use hodo_abi::Span;

use crate::block::Block;
use crate::placed::Placed;
use crate::points::Points;
use crate::translate::{Point, Translation};

/// Part of the cache.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    pub(crate) span: Span,
    /// Bytes from the start that are in use.
    pub(crate) used: u64,
    points: Points,
    /// Where the code of blocks begins, in ascending order.
    blocks: Vec<(u64, Option<Arc<Block>>)>,
    /// Where code begins that writes a record, in ascending order.
    records: Vec<u64>,
    /// It has translations of an earlier run, and nothing else.
    pub(crate) image: Option<Placed>,
}

impl Region {
    /// A region of which `used` bytes are in use.
    pub(crate) fn new(span: Span, used: u64) -> Self {
        Self {
            span,
            used,
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
        span
    }

    /// A translation is there from now on.
    pub(crate) fn add(&mut self, translation: &mut Translation) {
        let used = self.used + translation.bytes.len() as u64;
        self.used = used.next_multiple_of(16);
        self.points.extend(&translation.points);
        self.blocks.append(&mut translation.blocks);
        self.records.append(&mut translation.records);
    }

    /// The state of a thread that is at this address.
    pub(crate) fn point(&self, at: u64) -> Option<Point> {
        match &self.image {
            Some(image) => image.point(at),
            None => self.points.get(at),
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
