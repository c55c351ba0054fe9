//! One bit for each byte of code, set from several threads.

use crate::image::Text;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A set of code addresses.
pub(crate) struct Bits {
    sections: Vec<(u64, u64, Box<[AtomicU64]>)>,
    /// The largest one, in which most addresses are.
    largest: usize,
}

impl Bits {
    pub fn new(text: &[Text<'_>]) -> Self {
        Self::of(text.iter().map(|text| text.addr..text.end()))
    }

    /// A set in which there are only addresses of these ranges, which are sorted and do not overlap. Others are not
    /// added.
    pub fn of(ranges: impl Iterator<Item = Range<u64>>) -> Self {
        let run = |Range { start, end }: Range<u64>| {
            let words = (end - start).div_ceil(64);
            let bits = (0..words).map(|_| AtomicU64::new(0)).collect();
            (start, end, bits)
        };
        let sections: Vec<(u64, u64, Box<[AtomicU64]>)> = ranges.map(run).collect();
        let sizes = sections.iter().map(|run| run.1 - run.0).enumerate();
        let largest = sizes.max_by_key(|&(_, size)| size);
        Self {
            largest: largest.map_or(0, |(index, _)| index),
            sections,
        }
    }

    /// Returns the run of code that contains an address.
    #[inline]
    fn run(&self, addr: u64) -> Option<&(u64, u64, Box<[AtomicU64]>)> {
        let contains = |run: &&(u64, u64, Box<[AtomicU64]>)| run.0 <= addr && addr < run.1;
        let largest = self.sections.get(self.largest).filter(contains);
        largest.or_else(|| {
            let at = self.sections.partition_point(|s| s.0 <= addr);
            Some(&self.sections[at.checked_sub(1)?]).filter(contains)
        })
    }

    #[inline]
    fn find(&self, addr: u64) -> Option<(&AtomicU64, u64)> {
        let (start, _, bits) = self.run(addr)?;
        let offset = addr - start;
        Some((&bits[(offset / 64) as usize], 1 << (offset % 64)))
    }

    /// Adds all addresses of a range, which must lie within one run of code.
    pub fn set_all(&self, range: Range<u64>) {
        let mut addr = range.start;
        while addr < range.end {
            let Some((word, bit)) = self.find(addr) else {
                return;
            };
            let first = bit.trailing_zeros();
            let count = (range.end - addr).min(u64::from(64 - first));
            word.fetch_or(u64::MAX >> (64 - count) << first, Ordering::Relaxed);
            addr += count;
        }
    }

    pub fn set(&self, addr: u64) {
        if let Some((word, bit)) = self.find(addr)
            && word.load(Ordering::Relaxed) & bit == 0
        {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    pub fn get(&self, addr: u64) -> bool {
        self.find(addr)
            .is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Returns the first address in the range that is in the set. The range must lie within one run of code.
    pub fn first(&self, range: Range<u64>) -> Option<u64> {
        let at = self.sections.partition_point(|s| s.0 <= range.start);
        let (start, end, bits) = &self.sections[at.checked_sub(1)?];
        let end = range.end.min(*end);
        let mut addr = range.start;
        while addr < end {
            let offset = addr - start;
            let word = bits[(offset / 64) as usize].load(Ordering::Relaxed) >> (offset % 64);
            if word != 0 {
                let found = addr + u64::from(word.trailing_zeros());
                return (found < end).then_some(found);
            }
            addr += 64 - offset % 64;
        }
        None
    }

    /// Returns all addresses in the range that are in the set, in order. The range must lie within one run of code.
    pub fn each(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        let mut left = range;
        std::iter::from_fn(move || {
            let found = self.first(left.clone())?;
            left.start = found + 1;
            Some(found)
        })
    }

    /// Returns whether an address in the range is in the set.
    pub fn any(&self, range: Range<u64>) -> bool {
        range.into_iter().any(|addr| self.get(addr))
    }
}
