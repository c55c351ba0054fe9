//! What was built at one place, and how parts of it are written down.

use std::ops::Range;

use super::{NONE, Place};
use crate::open_site::Open;
use crate::refusal::Refusal;
use crate::{Copies, Island, Patches, Stub};

/// What was built at one place.
pub(super) struct Built {
    pub(super) place: Place,
    pub(super) code: Vec<u8>,
    /// For each entry of the search table, the start of the code and the FDE, as offsets from the first stub.
    pub(super) table: Vec<[u32; 2]>,
    pub(super) stubs: Vec<Stub>,
    pub(super) patches: Patches,
    pub(super) open: Vec<Open>,
    /// The memory that was asked for, and what was found.
    pub(super) asked: Vec<(Range<u64>, Option<u64>)>,
}

impl Built {
    /// The contents of an island from the offset of its first stub on.
    pub(super) fn new(
        island: &Island,
        from: (usize, usize, usize),
        patches: Patches,
        open: Vec<Open>,
        (bias, first): (u64, u32),
    ) -> Self {
        let (code, stubs, table) = from;
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap_or_default());
        let offset = |bytes: &[u8]| {
            let offset = word(bytes).wrapping_add(island.frames.header);
            offset.wrapping_sub(code as u32)
        };
        let entry = |entry: &[u8; 8]| [offset(&entry[..4]), offset(&entry[4..])];
        Self {
            place: Place {
                base: island.base,
                start: island.start() + code as u64,
                bias,
                first,
            },
            code: island.code[code..].to_vec(),
            table: island.table[table..].iter().map(entry).collect(),
            stubs: island.stubs[stubs..].to_vec(),
            patches,
            open,
            asked: Vec::new(),
        }
    }

    /// Finds what was found here, this many bytes farther.
    pub(super) fn places(&self, more: u64) -> impl FnMut(Range<u64>) -> Option<u64> {
        let mut found = self.asked.iter().map(|(_, found)| *found);
        move |_| Some(found.next()??.wrapping_add(more))
    }
}

impl Built {
    /// The offset of an address from the first stub.
    pub(super) fn offset(&self, at: u64) -> Option<u32> {
        let offset = at.checked_sub(self.place.start)?;
        (offset <= self.code.len() as u64).then_some(offset as u32)
    }

    /// The link-time address of a runtime address in the module.
    pub(super) fn addr(&self, at: u64) -> Option<u32> {
        let addr = u32::try_from(at.wrapping_sub(self.place.bias)).ok()?;
        (addr != NONE).then_some(addr)
    }

    /// Whether the patches contain nothing that cannot be kept.
    pub(super) fn can_be_kept(&self) -> bool {
        // If a field is added, decide whether it can be kept.
        let rest = Patches {
            writes: Vec::new(),
            traps: Vec::new(),
            sites: Vec::new(),
            ways: Vec::new(),
            copies: Copies::default(),
            failed: Vec::new(),
            ..self.patches.clone()
        };
        let has_calls = self.patches.copies.iter().any(|copied| copied.call);
        rest == Patches::default() && !has_calls
    }
}

pub(super) fn put(out: &mut Vec<u8>, word: u32) {
    out.extend(word.to_le_bytes());
}

pub(super) fn section(out: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    put(out, u32::try_from(bytes.len()).ok()?);
    out.extend(bytes);
    Some(())
}

/// The offset of the first difference between two pieces of code.
pub(super) fn difference(one: &[u8], other: &[u8]) -> Option<usize> {
    /// Most words do not differ.
    const PIECE: usize = 32;
    let mut pieces = one.chunks(PIECE).zip(other.chunks(PIECE));
    let piece = pieces.position(|(one, other)| one != other)? * PIECE;
    let mut bytes = one[piece..].iter().zip(&other[piece..]);
    Some(piece + bytes.position(|(one, other)| one != other)?)
}

/// The functions that could not be patched, and why.
pub(super) fn failures(patches: &Patches) -> Option<Vec<u8>> {
    let mut failed = Vec::new();
    for (addr, reason) in &patches.failed {
        // Another time, there may be room.
        let Refusal::Code(reason) = reason else {
            return None;
        };
        put(&mut failed, u32::try_from(*addr).ok()?);
        put(&mut failed, reason.len() as u32);
        failed.extend(reason.as_bytes());
    }
    Some(failed)
}
