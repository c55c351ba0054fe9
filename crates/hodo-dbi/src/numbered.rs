//! The blocks of an image in a process. Nobody receives most of them, because they are not executed: they are made when
//! somebody needs them.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use hodo_abi::Span;
use rustc_hash::FxHashMap;

use crate::block::Block;
use crate::image::{Image, Section};
use crate::native::rebuilt::Rebuilder;

/// Code of the program, as it is when an image is placed.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// Parts in ascending order.
    pub(crate) parts: Vec<(u64, Vec<u8>)>,
}

impl Source {
    /// The rest of a part from an address on.
    fn read(&self, pc: u64) -> Option<&[u8]> {
        let next = self.parts.partition_point(|(start, _)| *start <= pc);
        let (start, bytes) = self.parts.get(next.checked_sub(1)?)?;
        let rest = bytes.get((pc - start) as usize..)?;
        (!rest.is_empty()).then_some(rest)
    }
}

/// The blocks of an image in a process.
#[derive(Debug)]
pub(crate) struct Numbered {
    image: Rc<Image>,
    map: Span,
    source: Source,
    /// The file, and where the mapping begins in it.
    file: (PathBuf, u64),
    /// The number of the first one, and of its counter.
    pub(crate) first: u32,
    counter: u32,
    rebuilder: RefCell<Rebuilder>,
    /// Those that somebody has needed, and whether the client has been told of each.
    made: RefCell<FxHashMap<u32, (Arc<Block>, bool)>>,
}

impl Numbered {
    /// Numbers the blocks of an image from these ones on.
    pub(crate) fn new(
        image: Rc<Image>,
        map: Span,
        source: Source,
        file: (PathBuf, u64),
        (first, counter): (u32, u32),
    ) -> Self {
        Self {
            image,
            map,
            source,
            file,
            first,
            counter,
            rebuilder: RefCell::default(),
            made: RefCell::default(),
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u32 {
        self.image.list::<3>(Section::Blocks).len() as u32
    }

    /// The first instruction, the number of instructions, that of accesses and the bytes of a record of each of them.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (u64, [u32; 3])> {
        self.image.list::<3>(Section::Blocks).iter().map(|entry| {
            let [pc, sizes, record] = entry.map(u32::from_le_bytes);
            let pc = self.map.start + u64::from(pc);
            (pc, [sizes >> 16, sizes & 0xFFFF, record])
        })
    }

    /// A block by its number in the image, if the client has not been told of it. It has from now on.
    pub(crate) fn tell(&self, number: u32) -> Option<Arc<Block>> {
        let block = self.block(number)?;
        let mut made = self.made.borrow_mut();
        let (_, is_told) = made.get_mut(&number)?;
        (!std::mem::replace(is_told, true)).then_some(block)
    }

    /// A block by its number in the image.
    pub(crate) fn block(&self, number: u32) -> Option<Arc<Block>> {
        if let Some((block, _)) = self.made.borrow().get(&number) {
            return Some(Arc::clone(block));
        }
        let entry = self.image.list::<3>(Section::Blocks).get(number as usize)?;
        let [offset, sizes, _] = entry.map(u32::from_le_bytes);
        let pc = self.map.start + u64::from(offset);
        let read = |pc| self.source.read(pc);
        let mut rebuilder = self.rebuilder.borrow_mut();
        let insns = (sizes >> 16) as usize;
        let mut block = rebuilder.block(self.first + number, pc, insns, read)?;
        let (path, start) = &self.file;
        block.file = Some((path.clone(), start + u64::from(offset)));
        block.counter = self.counter + number;
        let block = Arc::new(block);
        self.made
            .borrow_mut()
            .insert(number, (Arc::clone(&block), false));
        Some(block)
    }
}
