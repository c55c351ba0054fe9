//! The numbers by which clients know blocks. In a run that is observed in parts, the same code is translated in each of
//! them: its blocks keep their numbers, or the numbers would end, and clients would have more blocks in each part.

use std::path::PathBuf;

use rustc_hash::FxHashMap;
use twox_hash::XxHash3_128;

use crate::block::Noted;

/// What a block is, as a number that no other block has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity(u128);

/// Finds out what a block is. `None`: it is nothing that can be translated again.
pub(crate) type Identify<'i> = &'i dyn Fn() -> Option<Identity>;

impl Identity {
    /// That of a block at an address, with the bytes of its instructions and all else on which it depends.
    pub(crate) fn of_block<'c>(
        pc: u64,
        code: impl Iterator<Item = &'c [u8]>,
        file: Option<&(PathBuf, u64)>,
        notes: &[(u16, Noted)],
        flags: [bool; 2],
    ) -> Self {
        let mut all = pc.to_le_bytes().to_vec();
        for insn in code {
            all.push(insn.len() as u8);
            all.extend(insn);
        }
        if let Some((path, offset)) = file {
            all.extend(path.as_os_str().as_encoded_bytes());
            all.extend(offset.to_le_bytes());
        }
        for (insn, what) in notes {
            all.extend(format!("{insn} {what:?}").as_bytes());
        }
        all.extend(flags.map(u8::from));
        Self(XxHash3_128::oneshot(&all))
    }

    /// That of all blocks of an image: made of code with this hash, for a mapping of a file, and listed in these bytes.
    pub(crate) fn of_image(
        source: u128,
        start: u64,
        (path, offset): (&PathBuf, u64),
        blocks: &[[[u8; 4]; 3]],
    ) -> Self {
        let mut hash = XxHash3_128::new();
        hash.write(&source.to_le_bytes());
        hash.write(&start.to_le_bytes());
        hash.write(path.as_os_str().as_encoded_bytes());
        hash.write(&offset.to_le_bytes());
        hash.write(blocks.as_flattened().as_flattened());
        Self(hash.finish_128())
    }
}

/// The numbers that blocks have.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    next: u32,
    /// The first ones of what is kept.
    kept: Option<FxHashMap<Identity, u32>>,
}

impl Numbers {
    /// Has blocks that are translated again have the numbers that they had.
    pub(crate) fn keep(&mut self) {
        self.kept.get_or_insert_default();
    }

    pub(crate) fn are_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// The first number that no block has.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Takes new numbers. Returns the first one.
    pub(crate) fn take(&mut self, count: u32) -> u32 {
        self.next += count;
        self.next - count
    }

    /// The first of the numbers that this has, if it has some.
    pub(crate) fn get(&self, identity: Identity) -> Option<u32> {
        self.kept.as_ref()?.get(&identity).copied()
    }

    /// From now on, this has the numbers from this one on.
    pub(crate) fn set(&mut self, identity: Identity, first: u32) {
        if let Some(kept) = &mut self.kept {
            kept.insert(identity, first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_has_its_number_again() {
        let code: [&[u8]; 2] = [&[0x90], &[0xC3]];
        let other: [&[u8]; 1] = [&[0x90, 0xC3]];
        let file = (PathBuf::from("/lib/some.so"), 64);
        let of = |pc, code: &[&'static [u8]], file| {
            Identity::of_block(pc, code.iter().copied(), file, &[], [true, false])
        };
        let first = of(1, &code, None);
        assert_eq!(first, of(1, &code, None));
        for another in [
            of(2, &code, None),
            of(1, &other, None),
            of(1, &code, Some(&file)),
        ] {
            assert_ne!(first, another);
        }
        let mut numbers = Numbers::default();
        numbers.set(first, 5);
        assert_eq!(numbers.get(first), None);
        numbers.keep();
        assert_eq!((numbers.take(3), numbers.take(1)), (0, 3));
        numbers.set(first, 3);
        numbers.keep();
        assert_eq!(numbers.get(first), Some(3));
        assert_eq!(numbers.next(), 4);
    }
}
