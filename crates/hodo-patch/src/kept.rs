//! Stubs that are built once and reused at other addresses by later recordings.
//!
//! This is how it is done where [`MOVABLE`] holds; for other instruction sets, see `whole.rs`. A module's stubs, and
//! the bytes that are written over its sites, depend on four numbers: the address of the island, the address of its
//! first stub, the address of the module, and the first of its ids. Everything that depends on them
//! is a four-byte word to which a difference can be added (`make.rs` finds these words, and checks that there are no
//! others). So stubs are kept in parts: parts that many stubs share are kept once, and for each function only its
//! displaced instructions and the numbers of the shared parts around them. Putting them together takes only a small
//! part of the time needed to build them.

mod built;
mod make;
mod whole;

use std::collections::HashSet;

use hodo_abi::Span;
use hodo_codegen::native::masm::fill;
use hodo_codegen::native::patch::{MOVABLE, forges_stub};

use crate::later::write_later;
use crate::machine::has_atomics;
use crate::open_site::Open;
use crate::{Copied, Image, Island, Lead, Patches, Places, Stub};

/// A word that depends on an address. This says what must be added to the word of a kept part, modulo 2^32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Class {
    /// The island's start minus the word's own address: for a distance to the agent.
    Agent = 0,
    /// The module's bias minus the word's own address and a bit more: for a distance to the module.
    Module = 1,
    /// The function's id.
    Id = 2,
    /// The module's bias. The word is the lower half of an address; the upper half is eight bytes after it.
    Halves = 3,
    /// The word's own address minus the island's start: for references from frame tables to what they share.
    Tables = 4,
}

impl Class {
    const ALL: [Self; 5] = [
        Self::Agent,
        Self::Module,
        Self::Id,
        Self::Halves,
        Self::Tables,
    ];

    fn new(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }
}

/// The four numbers.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Runtime address of the island.
    base: u64,
    /// Runtime address of the first stub.
    start: u64,
    /// Runtime minus link-time address of the module.
    bias: u64,
    /// Its first id.
    first: u32,
}

impl Place {
    /// How much larger a word of this class is at this address than in a kept part. `id`: the function's id.
    fn more(&self, class: Class, at: u64, id: u32) -> u32 {
        let more = match class {
            Class::Agent => self.base.wrapping_sub(at),
            // A distance that leads to the module's first byte is counted from the end of the word.
            Class::Module => self.bias.wrapping_sub(at).wrapping_sub(16),
            Class::Id => id.into(),
            Class::Halves => self.bias,
            Class::Tables => at.wrapping_sub(self.base),
        };
        more as u32
    }

    fn in_module(&self, addr: u32) -> u64 {
        self.bias.wrapping_add(addr.into())
    }

    fn in_stubs(&self, offset: u32) -> u64 {
        self.start + u64::from(offset)
    }
}

/// Stands for no address.
const NONE: u32 = u32::MAX;
/// In a write: it has no word that depends on addresses.
const CONSTANT: u32 = 0xFF;

/// The first word of each part: the number of the shared part, from 1 on, or 0 if the part is not shared; and the power
/// of two to a multiple of which the code before it is filled up.
const ALIGN_BITS: u32 = 4;

/// A field: the offset of a word in a part, and its class.
const CLASS_BITS: u32 = 3;

fn field(word: u32) -> Option<(usize, Class)> {
    let class = Class::new(word & ((1 << CLASS_BITS) - 1))?;
    Some(((word >> CLASS_BITS) as usize, class))
}

/// Reads consecutive words and bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    /// A section: its length, then its bytes.
    fn section(&mut self) -> Option<Reader<'a>> {
        let len = self.word()?;
        self.bytes(len as usize).map(Reader)
    }

    /// A section of rows.
    fn rows<const N: usize>(&mut self) -> Option<impl ExactSizeIterator<Item = [u32; N]> + 'a> {
        let Reader(bytes) = self.section()?;
        let (rows, rest) = bytes.as_chunks::<4>().0.as_chunks::<N>();
        rest.is_empty()
            .then(|| rows.iter().map(|row| row.map(u32::from_le_bytes)))
    }

    /// The functions that could not be patched, and why.
    fn failures(&mut self, patches: &mut Patches) -> Option<()> {
        let mut failed = self.section()?;
        while !failed.0.is_empty() {
            let (addr, len) = (failed.word()?, failed.word()?);
            let reason = str::from_utf8(failed.bytes(len as usize)?).ok()?;
            patches.failed.push((addr.into(), reason.to_owned().into()));
        }
        Some(())
    }
}

/// A part that many stubs share.
struct Common<'a> {
    bytes: &'a [u8],
    fields: Vec<(usize, Class)>,
}

impl<'a> Common<'a> {
    fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let (len, count) = (reader.word()? as usize, reader.word()?);
        let fields = (0..count).map(|_| field(reader.word()?));
        let fields: Vec<_> = fields.collect::<Option<_>>()?;
        let bytes = reader.bytes(len)?;
        let inside = |(at, class): &(usize, Class)| at + class.len() <= len;
        fields.iter().all(inside).then_some(Self { bytes, fields })
    }
}

impl Class {
    /// Bytes from the word's first byte to the last byte that depends on an address.
    fn len(self) -> usize {
        if self == Self::Halves { 12 } else { 4 }
    }
}

/// Adjusts a word, and the bytes that belong to it.
fn set(bytes: &mut [u8], at: usize, class: Class, place: &Place, addr: u64, id: u32) -> Option<()> {
    let word: &mut [u8; 4] = bytes.get_mut(at..at + 4)?.try_into().ok()?;
    let now = u32::from_le_bytes(*word);
    *word = now.wrapping_add(place.more(class, addr, id)).to_le_bytes();
    if class == Class::Halves {
        let upper = (place.in_module(now) >> 32) as u32;
        bytes
            .get_mut(at + 8..at + 12)?
            .copy_from_slice(&upper.to_le_bytes());
    }
    Some(())
}

impl Island {
    /// What kept stubs of a module depend on besides the module itself and the recording. `first`: its first id.
    #[must_use]
    pub fn kept_for(&self, bias: u64, first: u32) -> [u64; 5] {
        match MOVABLE {
            true => [0; 5],
            false => [
                self.base.wrapping_sub(bias),
                self.end() - self.base,
                self.capacity,
                first.into(),
                has_atomics().into(),
            ],
        }
    }

    /// Whether stubs can be kept here, or built from kept ones.
    fn is_plain(&self) -> bool {
        self.rows.is_empty()
            && self.syscalls.is_none()
            && self.stack.is_none()
            && self.detours.is_none()
            && self.base.is_multiple_of(16)
            && self.origin.is_multiple_of(4)
    }

    /// Fills up the code to the place where stubs begin.
    fn align_stubs(&mut self) {
        let missing = (self.end().wrapping_neg() & 15) as usize;
        let len = self.code.len() + missing;
        fill(&mut self.code, len);
    }

    /// Adds what [`Self::add_and_keep`] has returned for the same file, functions, calls, recording and
    /// [`Self::kept_for`]. `first`: the current id of the function that had the id `first` there. Returns false if it
    /// cannot be used here; then nothing is changed, except that places which were found stay taken.
    pub fn add_kept(
        &mut self,
        kept: &[u8],
        image: Image<'_>,
        first: u32,
        places: &mut Places<'_>,
        patches: &mut Patches,
    ) -> bool {
        if !self.is_plain() || *patches != Patches::default() {
            return false;
        }
        let before = (self.code.len(), self.stubs.len(), self.table.len());
        let added = match MOVABLE {
            true => self.put_together(kept, image, first, patches),
            false => self.put_whole(kept, image, first, places, patches),
        };
        match added {
            Some((open, hosts)) => {
                write_later(open, &hosts, image, places, patches);
                true
            }
            None => {
                self.code.truncate(before.0);
                self.stubs.truncate(before.1);
                self.table.truncate(before.2);
                *patches = Patches::default();
                false
            }
        }
    }

    fn put_together(
        &mut self,
        kept: &[u8],
        image: Image<'_>,
        first: u32,
        patches: &mut Patches,
    ) -> Option<(Vec<Open>, HashSet<u64>)> {
        let mut reader = Reader(kept);
        let mut head = reader.section()?;
        let [lowest, highest, size, groups] = [(); 4].map(|()| head.word());
        let (size, groups) = (size? as usize, groups? as usize);
        self.align_stubs();
        // Each group needs an entry in the search table, and later additions need room.
        self.check_room(size + 8 * groups + 4096).ok()?;
        let place = Place {
            base: self.base,
            start: self.end(),
            bias: image.bias,
            first,
        };
        for addr in [lowest?, highest?] {
            self.check_reach(place.in_module(addr)).ok()?;
        }
        let from = self.code.len();
        self.put_code(&place, from + size, &mut reader)?;
        if self.code.len() - from != size {
            return None;
        }
        let table = reader.rows()?.map(|[start, at]| {
            let offset = from as u32;
            (self.frames).table_entry(offset.wrapping_add(start), offset.wrapping_add(at))
        });
        self.table.extend(table);
        let file = |addr| match addr {
            NONE => 0,
            addr => place.in_module(addr),
        };
        let stubs = reader.rows()?;
        let stubs = stubs.map(|[start, body, slow, original, entry]| Stub {
            start: place.in_stubs(start),
            body: place.in_stubs(body),
            slow: place.in_stubs(slow),
            original: file(original),
            entry: place.in_stubs(entry),
        });
        self.stubs.extend(stubs);
        put_writes(&place, image, &mut reader, patches)?;
        let lead = |[site, stub]: [u32; 2]| Lead {
            at: place.in_module(site),
            to: place.in_stubs(stub),
        };
        patches.traps.extend(reader.rows()?.map(lead));
        patches.sites.extend(reader.rows()?.map(lead));
        let way = |[start, end]: [u32; 2]| Span::from(place.in_module(start)..place.in_module(end));
        patches.ways.extend(reader.rows()?.map(way));
        let copies = reader.rows()?.map(|[original, before, copy]| Copied {
            original: place.in_module(original),
            before: place.in_stubs(before),
            copy: place.in_stubs(copy),
            call: false,
            leads: false,
        });
        patches.copies.extend(copies);
        let open = reader.rows()?.map(|[patch, len, free, stub]| {
            let (len, free) = (u8::try_from(len).ok()?, u8::try_from(free).ok()?);
            let stub = place.in_stubs(stub);
            // It must choose fewer than all four bytes of the distance, and be no longer than the jump.
            (free < 4 && len <= 5).then(|| Open::pun(patch.into(), len, free, stub))
        });
        let open = open.collect::<Option<_>>()?;
        reader.failures(patches)?;
        reader.0.is_empty().then_some((open, HashSet::new()))
    }

    /// Adds the code, which must not extend beyond `end`.
    fn put_code(&mut self, place: &Place, end: usize, reader: &mut Reader<'_>) -> Option<()> {
        let mut section = reader.section()?;
        let mut common = Vec::new();
        while !section.0.is_empty() {
            common.push(Common::read(&mut section)?);
        }
        let here = self.start();
        let code = &mut self.code;
        let mut parts = reader.section()?;
        while !parts.0.is_empty() {
            if code.len() > end {
                return None;
            }
            let word = parts.word()?;
            let align = 1 << (word & ((1 << ALIGN_BITS) - 1)).min(6);
            // The island's start is aligned, and so is the part of the island that is not held here.
            let missing = (here + code.len() as u64).wrapping_neg() & (align - 1);
            let at = code.len() + missing as usize;
            fill(code, at);
            if let Some(index) = (word >> ALIGN_BITS).checked_sub(1) {
                let id = place.first.wrapping_add(parts.word()?);
                let common: &Common<'_> = common.get(index as usize)?;
                code.extend_from_slice(common.bytes);
                for &(offset, class) in &common.fields {
                    let at = at + offset;
                    set(code, at, class, place, here + at as u64, id)?;
                }
                continue;
            }
            let (len, count) = (parts.word()? as usize, parts.word()? as usize);
            let fields = parts.bytes(4 * count)?.as_chunks::<4>().0;
            code.extend_from_slice(parts.bytes(len)?);
            for word in fields {
                let (offset, class) = field(u32::from_le_bytes(*word))?;
                if offset + class.len() > len {
                    return None;
                }
                let at = at + offset;
                set(code, at, class, place, here + at as u64, 0)?;
            }
            for word in fields {
                let (offset, class) = field(u32::from_le_bytes(*word))?;
                if class != Class::Tables && is_forged(&code[at..], offset, class) {
                    return None;
                }
            }
        }
        Some(())
    }
}

/// Whether a word makes displaced instructions look like a stub's.
fn is_forged(bytes: &[u8], offset: usize, class: Class) -> bool {
    forges_stub(bytes, offset) || (class == Class::Halves && forges_stub(bytes, offset + 8))
}

fn put_writes(
    place: &Place,
    image: Image<'_>,
    reader: &mut Reader<'_>,
    patches: &mut Patches,
) -> Option<()> {
    let mut section = reader.section()?;
    let count = section.word()? as usize;
    patches.writes.reserve(count.min(section.0.len()));
    while !section.0.is_empty() {
        let (addr, shape) = (section.word()?, section.word()?);
        let (len, at) = (shape >> 8, shape & 0xFF);
        // The bytes that are written over must be in the file.
        (image.code)(addr.into()..u64::from(addr) + u64::from(len))?;
        let mut bytes = section.bytes(len as usize)?.to_vec();
        if at != CONSTANT {
            let word: &mut [u8; 4] = bytes.get_mut(at as usize..)?.first_chunk_mut()?;
            let more = place.start.wrapping_sub(place.bias) as u32;
            *word = u32::from_le_bytes(*word).wrapping_add(more).to_le_bytes();
        }
        patches.writes.push((place.in_module(addr), bytes));
    }
    Some(())
}
