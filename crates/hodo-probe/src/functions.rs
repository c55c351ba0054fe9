//! Which function contains an address, according to the unwind tables that are mapped with the code (LSB 5.0, section
//! 10.6). No file is read and no library is called.

use alloc::vec::Vec;
use core::ops::Range;

use super::maps::Mapping;
use super::memory::Memory;

const PT_GNU_EH_FRAME: u32 = 0x6474_E550;
const PT_LOAD: u32 = 1;
const PCREL: u8 = 0x10;
const DATAREL: u8 = 0x30;

struct Reader<'a>(&'a Memory);

impl Reader<'_> {
    fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        self.0.read(at, N).try_into().ok()
    }

    fn u32(&self, at: u64) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: u64) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    /// A pointer and its length in bytes. Only the encodings that compilers use.
    fn pointer(&self, at: u64, encoding: u8, data: u64) -> Option<(u64, u64)> {
        let base = match encoding & 0x70 {
            0 => 0,
            PCREL => at,
            DATAREL => data,
            _ => return None,
        };
        let (value, size) = match encoding & 0x0F {
            0x00 | 0x04 | 0x0C => (self.u64(at)?, 8),
            0x03 => (u64::from(self.u32(at)?), 4),
            0x0B => (i64::from(self.u32(at)?.cast_signed()).cast_unsigned(), 4),
            _ => return None,
        };
        Some((base.wrapping_add(value), size))
    }
}

/// The range of the function that contains an address, if a table has one.
pub(super) fn around(memory: &Memory, maps: &[Mapping], addr: u64) -> Option<Range<u64>> {
    let reader = Reader(memory);
    let header = header(&reader, maps, addr)?;
    let [version, pointer, count, table] = reader.bytes(header)?;
    // Linkers only make tables of pairs of 32-bit distances.
    if version != 1 || table != DATAREL | 0x0B {
        return None;
    }
    let (_, size) = reader.pointer(header + 4, pointer, header)?;
    let (entries, more) = reader.pointer(header + 4 + size, count, header)?;
    let table = header + 4 + size + more;
    let entry = |index: u64| {
        let [start, fde] =
            [0, 4].map(|at| reader.pointer(table + index * 8 + at, DATAREL | 0x0B, header));
        Some((start?.0, fde?.0))
    };
    let (mut low, mut high) = (0, entries);
    while low < high {
        let middle = low + (high - low) / 2;
        if entry(middle)?.0 <= addr {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let (start, fde) = entry(low.checked_sub(1)?)?;
    let range = start..start + len(&reader, fde)?;
    range.contains(&addr).then_some(range)
}

/// How many bytes of code an FDE describes.
fn len(reader: &Reader<'_>, fde: u64) -> Option<u64> {
    let cie = (fde + 4).checked_sub(u64::from(reader.u32(fde + 4)?))?;
    let text = reader.0.read(cie + 9, 64);
    let end = text.iter().position(|&byte| byte == 0)?;
    let (letters, rest) = text.split_at(end);
    // Code alignment, data alignment, return register, length of what follows: LEB128 numbers.
    let mut rest = rest[1..].iter().copied();
    for _ in 0..4 {
        rest.by_ref().find(|byte| byte & 0x80 == 0)?;
    }
    let mut encoding = 0;
    if letters.first() != Some(&b'z') {
        return None;
    }
    for letter in &letters[1..] {
        match letter {
            b'R' => encoding = rest.next()?,
            b'L' => {
                rest.next()?;
            }
            b'P' => {
                let size = match rest.next()? & 0x0F {
                    0x00 | 0x04 | 0x0C => 8,
                    0x02 | 0x0A => 2,
                    _ => 4,
                };
                rest.by_ref().nth(size - 1)?;
            }
            _ => {}
        }
    }
    let (_, size) = reader.pointer(fde + 8, encoding, 0)?;
    reader
        .pointer(fde + 8 + size, encoding & 0x0F, 0)
        .map(|(len, _)| len)
}

/// Where the file begins in memory that an address is in, or that is next below it.
pub(super) fn image(memory: &Memory, maps: &[Mapping], addr: u64) -> Option<u64> {
    let reader = Reader(memory);
    let at = maps.partition_point(|map| map.range.end <= addr);
    let image = maps[..=at.min(maps.len().checked_sub(1)?)]
        .iter()
        .rev()
        .take(64);
    image
        .filter(|map| map.offset == 0 && map.read)
        .find_map(|map| {
            let start = map.range.start;
            (reader.bytes(start)? == *b"\x7FELF\x02\x01").then_some(start)
        })
}

/// Where the search table of the module that contains this address is.
fn header(reader: &Reader<'_>, maps: &[Mapping], addr: u64) -> Option<u64> {
    let image = image(reader.0, maps, addr)?;
    let headers = image + reader.u64(image + 32)?;
    let size = u64::from(u16::from_le_bytes(reader.bytes(image + 54)?));
    let count = u64::from(u16::from_le_bytes(reader.bytes(image + 56)?));
    let all: Vec<(u32, u64, u64)> = (0..count)
        .filter_map(|index| {
            let header = headers + index * size;
            Some((
                reader.u32(header)?,
                reader.u64(header + 16)?,
                reader.u64(header + 40)?,
            ))
        })
        .collect();
    let loads = || all.iter().filter(|header| header.0 == PT_LOAD);
    let bias = image.wrapping_sub(loads().next()?.1 & !0xFFF);
    let inside = |&&(_, start, size): &&(u32, u64, u64)| {
        let start = start.wrapping_add(bias);
        (start..start + size).contains(&addr)
    };
    loads().find(inside)?;
    let table = all.iter().find(|header| header.0 == PT_GNU_EH_FRAME)?;
    Some(table.1.wrapping_add(bias))
}
