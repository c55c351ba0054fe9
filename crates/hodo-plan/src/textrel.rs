//! Whether the dynamic linker changes code.

use std::collections::HashMap;

use object::Endianness;
use object::elf;
use object::read::elf::{Dyn, ProgramHeader, Rela};

use crate::image::Image;
use crate::relr::unpack;

/// The maximum number of bytes that a relocation changes, except copies of variables.
const LONGEST: u64 = 16;
/// The relocation that does nothing has this number for all instruction sets.
const NONE: u32 = 0;
/// Packed relative relocations: table and size, in the generic ABI since 2023.
const DT_RELR: u64 = 36;
const DT_RELRSZ: u64 = 35;

impl Image<'_> {
    /// Returns whether the dynamic linker changes code: the file says so (`DT_TEXTREL`, or the flag in `DT_FLAGS`), and
    /// either one of its relocations is in the code or they cannot be read.
    pub fn relocates_code(&self) -> bool {
        let Some(entries) = self.dynamic() else {
            return false;
        };
        let flags = u64::from(elf::DF_TEXTREL);
        let says = entries.contains_key(&u64::from(elf::DT_TEXTREL))
            || entries
                .get(&u64::from(elf::DT_FLAGS))
                .is_some_and(|value| value & flags != 0);
        says && self.relocated(&entries).is_none_or(|places| {
            places.into_iter().any(|place| {
                let end = place.saturating_add(LONGEST);
                self.text
                    .iter()
                    .any(|text| place < text.end() && text.addr < end)
            })
        })
    }

    /// The entries for the dynamic linker.
    fn dynamic(&self) -> Option<HashMap<u64, u64>> {
        let endian = self.file.endian();
        let data = self.file.data();
        let headers = self.file.elf_program_headers().iter();
        let mut tables = headers.filter_map(|header| header.dynamic(endian, data).ok()?);
        let known = tables.next()?.iter();
        let known = known.take_while(|entry| entry.d_tag(endian) != u64::from(elf::DT_NULL));
        Some(
            known
                .map(|entry| (entry.d_tag(endian), entry.d_val(endian)))
                .collect(),
        )
    }

    /// Returns the places that dynamic relocations change; nothing if some cannot be read.
    fn relocated(&self, entries: &HashMap<u64, u64>) -> Option<Vec<u64>> {
        let endian = self.file.endian();
        let value = |tag: u32| entries.get(&tag.into()).copied();
        let table = |at: Option<u64>, size: Option<u64>| match (at, size) {
            (None, _) | (_, None | Some(0)) => Some(&[][..]),
            (Some(at), Some(size)) => self.loaded(at, size),
        };
        if value(elf::DT_REL).is_some() {
            return None;
        }
        let calls = match value(elf::DT_PLTREL) {
            None => &[][..],
            Some(kind) if kind == u64::from(elf::DT_RELA) => {
                table(value(elf::DT_JMPREL), value(elf::DT_PLTRELSZ))?
            }
            Some(_) => return None,
        };
        let mut places = Vec::new();
        for bytes in [table(value(elf::DT_RELA), value(elf::DT_RELASZ))?, calls] {
            let count = bytes.len() / size_of::<elf::Rela64<Endianness>>();
            let (relocations, _) =
                object::slice_from_bytes::<elf::Rela64<Endianness>>(bytes, count).ok()?;
            let real = relocations
                .iter()
                .filter(|relocation| relocation.r_type(endian, false) != NONE);
            places.extend(real.map(|relocation| relocation.r_offset(endian)));
        }
        let packed = |tag: u64| entries.get(&tag).copied();
        let packed = table(packed(DT_RELR), packed(DT_RELRSZ))?;
        unpack(packed, |place| places.push(place));
        Some(places)
    }

    /// Returns bytes of a segment at an address.
    fn loaded(&self, addr: u64, size: u64) -> Option<&[u8]> {
        let endian = self.file.endian();
        let headers = self.file.elf_program_headers().iter();
        let mut segments = headers.filter(|header| header.p_type(endian) == elf::PT_LOAD);
        segments.find_map(|header| {
            let data = header.data(endian, self.file.data()).ok()?;
            let from = usize::try_from(addr.checked_sub(header.p_vaddr(endian))?).ok()?;
            data.get(from..from.checked_add(usize::try_from(size).ok()?)?)
        })
    }
}
