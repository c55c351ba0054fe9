//! Images in processes.

use std::rc::Rc;
use std::sync::Arc;

use hodo_abi::Span;
use hodo_codegen::statemap::{Group, Parts};

use crate::block::Block;
use crate::image::{Image, NO_BLOCK, Section, find, join};
use crate::numbered::Numbered;
use crate::translate::Point;

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
    /// Its blocks, if executions are counted.
    blocks: Option<Rc<Numbered>>,
}

impl Placed {
    /// An image of this code, whose translation is at an address.
    pub(crate) fn new(image: Rc<Image>, at: u64, map: Span, blocks: Option<Rc<Numbered>>) -> Self {
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
            image,
            at,
            map,
            open: Rc::new(open),
            blocks,
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
            Group {
                at: at.into(),
                original: join(low, high),
                bytes: bytes as usize,
            }
        };
        let points = Parts {
            count: groups.len(),
            group,
            bytes: image.section(Section::Points as usize),
            states: image.states(),
        };
        let point = points.at_or_before(at.checked_sub(self.at)?)?;
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

    /// The instruction that comes next at the breakpoint of an exit, and the word that holds where to jump.
    pub(crate) fn exit(&self, trap: u64) -> Option<(u64, u64)> {
        let [_, cell, low, high] = find(self.image.list(Section::Exits), self.offset(trap)?)?;
        let target = self.map.start.wrapping_add(join(low, high));
        Some((target, self.at + u64::from(cell)))
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

    /// The image.
    pub(crate) fn image(&self) -> &Image {
        &self.image
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

    /// The block to which the code at this address belongs.
    pub(crate) fn block_at(&self, at: u64) -> Option<Arc<Block>> {
        let at = self.offset(at)?;
        let places = self.image.list::<2>(Section::Places);
        let next = places.partition_point(|[place, _]| u32::from_le_bytes(*place) <= at);
        let [_, number] = places.get(next.checked_sub(1)?)?.map(u32::from_le_bytes);
        let blocks = self.blocks.as_ref().filter(|_| number != NO_BLOCK)?;
        blocks.block(number)
    }

    /// Where the code begins that writes a record, and that a thread is in that is at this address.
    pub(crate) fn record_start(&self, at: u64) -> Option<u64> {
        let at = self.offset(at)?;
        let records = self.image.list::<1>(Section::Records);
        let next = records.partition_point(|[start]| u32::from_le_bytes(*start) <= at);
        let [start] = records.get(next.checked_sub(1)?)?.map(u32::from_le_bytes);
        Some(self.at + u64::from(start))
    }

    /// The breakpoints of exits, the words that hold where to jump, and the instructions that come next.
    pub(crate) fn exits(&self) -> impl Iterator<Item = [u64; 3]> {
        let exits = self.image.list::<4>(Section::Exits).iter();
        exits.map(|entry| {
            let [trap, cell, low, high] = entry.map(u32::from_le_bytes);
            let target = self.map.start.wrapping_add(join(low, high));
            [self.at + u64::from(trap), self.at + u64::from(cell), target]
        })
    }
}
