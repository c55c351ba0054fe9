//! Stubs that are kept as a whole: for instruction sets whose words cannot be adjusted by adding a difference.
//!
//! Such stubs are used again only where everything is in the same place relative to everything else: the island, its
//! first stub, the module, the ids ([`Island::kept_for`] has these numbers), and the memory found for pads. Then the
//! code is the same wherever all of it is, if that is a whole number of pages away, except for the addresses in it.
//! Programs are loaded at another address each time, but mostly with the same distances.

use std::collections::HashSet;
use std::ops::Range;
use std::vec::IntoIter;

use hodo_abi::Span;
use hodo_isa::Via;
use hodo_plan::model::Extra;

use super::Reader;
use super::built::{Built, difference, failures, section};
use crate::open_site::{Later, Open};
use crate::{Copied, Image, Island, Lead, PLACE, Patches, Places, Stub};

/// Code that forms the addresses of pages is the same at distances of this many bytes.
const PAGE: u64 = 4096;

/// How far from the first place stubs are built a second time. Each half of an address differs there, and the second
/// byte is the first one that does.
pub(super) const MOVE: u64 = (0x31 << 32) + 0x1234_5000;

impl<'a> Reader<'a> {
    fn long(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// A number of as many bytes as it needs.
    fn number(&mut self) -> Option<u64> {
        let mut all = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            all |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(all);
            }
        }
        None
    }

    /// A section of rows of addresses.
    fn addresses<const N: usize>(&mut self) -> Option<IntoIter<[u64; N]>> {
        let mut section = self.section()?;
        let mut last = [0u64; N];
        let mut rows = Vec::new();
        while !section.0.is_empty() {
            for address in &mut last {
                let difference = section.number()?;
                let difference = (difference >> 1) ^ (difference & 1).wrapping_neg();
                *address = address.wrapping_add(difference);
            }
            rows.push(last);
        }
        Some(rows.into_iter())
    }
}

/// Writes rows of addresses. Most differ little from those in the row before, so the differences are written, in seven
/// bits a byte.
fn addresses<const N: usize>(
    out: &mut Vec<u8>,
    rows: impl Iterator<Item = [u64; N]>,
) -> Option<()> {
    let mut bytes = Vec::new();
    let mut last = [0; N];
    for row in rows {
        for (address, before) in row.into_iter().zip(last) {
            let difference = address.wrapping_sub(before).cast_signed();
            let mut rest = (difference << 1 ^ difference >> 63).cast_unsigned();
            while rest >= 0x80 {
                bytes.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            bytes.push(rest as u8);
        }
        last = row;
    }
    section(out, &bytes)
}

/// Where addresses are in bytes that were made at two places; `None` if something else differs.
fn absolute(one: &[u8], other: &[u8]) -> Option<Vec<usize>> {
    let word = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    if one.len() != other.len() {
        return None;
    }
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(offset) = difference(&one[from..], &other[from..]) {
        let at = (from + offset).checked_sub(1).filter(|&at| at >= from)?;
        if word(other, at)?.wrapping_sub(word(one, at)?) != MOVE {
            return None;
        }
        found.push(at);
        from = at + 8;
    }
    Some(found)
}

/// Adds a difference to an address in bytes.
fn shift(bytes: &mut [u8], at: usize, more: u64) -> Option<()> {
    let word: &mut [u8; 8] = bytes.get_mut(at..)?.first_chunk_mut()?;
    *word = u64::from_le_bytes(*word).wrapping_add(more).to_le_bytes();
    Some(())
}

/// How a site is written later, as numbers.
fn numbers(site: &Open) -> [u64; 11] {
    let (extra, a, b) = match site.extra {
        Extra::None => (0, 0, 0),
        Extra::HopSlot(slot) => (1, slot, 0),
        Extra::Near => (2, 0, 0),
        Extra::HopDonor { slot, host } => (3, slot, host),
        Extra::Pun { free } => (4, free.into(), 0),
    };
    let (via, register) = match site.via {
        Via::Nothing => (0, 0),
        Via::Free(register) => (1, register),
        Via::Kept(register) => (2, register),
    };
    let (later, c, d) = match site.later {
        Later::Pun(free) => (0, free.into(), 0),
        Later::Near => (1, 0, 0),
        Later::Donor { slot, host } => (2, slot, host),
        Later::Literal(None) => (3, 0, 0),
        Later::Literal(Some(at)) => (4, at, 0),
        Later::Farther => (5, 0, 0),
    };
    let (len, stub) = (u64::from(site.patch_len), site.stub);
    let via = via | u64::from(register) << 8;
    [site.patch, len, stub, via, extra, a, b, later, c, d, 0]
}

/// The reverse of [`numbers`], if everything is `more` bytes farther now.
fn open_site(numbers: [u64; 11], more: u64) -> Option<Open> {
    let [patch, len, stub, via, extra, a, b, later, c, d, _] = numbers;
    let byte = |number: u64| u8::try_from(number).ok();
    let register = byte(via >> 8)?;
    Some(Open {
        patch,
        patch_len: byte(len)?,
        extra: match extra {
            0 => Extra::None,
            1 => Extra::HopSlot(a),
            2 => Extra::Near,
            3 => Extra::HopDonor { slot: a, host: b },
            4 => Extra::Pun { free: byte(a)? },
            _ => return None,
        },
        via: match via & 0xFF {
            0 => Via::Nothing,
            1 => Via::Free(register),
            2 => Via::Kept(register),
            _ => return None,
        },
        later: match later {
            0 => Later::Pun(byte(c)?),
            1 => Later::Near,
            2 => Later::Donor {
                slot: c.wrapping_add(more),
                host: d,
            },
            3 => Later::Literal(None),
            4 => Later::Literal(Some(c)),
            5 => Later::Farther,
            _ => return None,
        },
        stub: stub.wrapping_add(more),
    })
}

impl Built {
    /// The bytes to keep, if stubs that were built [`MOVE`] bytes away are the same. `hosts`: the functions that are
    /// patched.
    pub(super) fn keep_whole(&self, other: &Self, hosts: &HashSet<u64>) -> Option<Vec<u8>> {
        let patches = &self.patches;
        let same = [self.code.len(), self.table.len(), patches.writes.len()]
            == [
                other.code.len(),
                other.table.len(),
                other.patches.writes.len(),
            ];
        if !same || self.stubs.is_empty() || self.place.start % PAGE != other.place.start % PAGE {
            return None;
        }
        let mut out = Vec::with_capacity(2 * self.code.len());
        let place = &self.place;
        for number in [place.start, place.base, place.bias, place.first.into()] {
            out.extend(number.to_le_bytes());
        }
        let asked = self.asked.iter().map(|(range, found)| {
            let at = found.unwrap_or_default();
            [range.start, range.end, found.is_some().into(), at]
        });
        addresses(&mut out, asked)?;
        section(&mut out, &self.code)?;
        let held = absolute(&self.code, &other.code)?;
        addresses(&mut out, held.into_iter().map(|at| [at as u64]))?;
        let table = self.table.iter().map(|entry| entry.map(u64::from));
        addresses(&mut out, table)?;
        let stubs = self.stubs.iter();
        addresses(
            &mut out,
            stubs.map(|s| [s.start, s.body, s.slow, s.original, s.entry]),
        )?;
        let (mut writes, mut written) = (Vec::new(), Vec::new());
        for ((at, bytes), (_, others)) in patches.writes.iter().zip(&other.patches.writes) {
            let held = absolute(bytes, others)?;
            if held.len() > 1 {
                return None;
            }
            // One more than where an address is, or 0.
            let held = held.first().map_or(0, |&at| at as u64 + 1);
            writes.push([*at, bytes.len() as u64, held]);
            written.extend(bytes);
        }
        addresses(&mut out, writes.into_iter())?;
        section(&mut out, &written)?;
        for leads in [&patches.traps, &patches.sites, &patches.faults] {
            addresses(&mut out, leads.iter().map(|lead| [lead.at, lead.to]))?;
        }
        for spans in [&patches.ways, &patches.leaving] {
            addresses(&mut out, spans.iter().map(|span| [span.start, span.end]))?;
        }
        let copies = patches.copies.iter().map(|copied| {
            let flags = u64::from(copied.leads) << 1 | u64::from(copied.call);
            [copied.original, copied.before, copied.copy, flags]
        });
        addresses(&mut out, copies)?;
        addresses(&mut out, self.open.iter().map(numbers))?;
        let asked = self.open.iter().filter_map(|site| match site.later {
            Later::Donor { host, .. } => Some([host]).filter(|_| hosts.contains(&host)),
            _ => None,
        });
        addresses(&mut out, asked)?;
        section(&mut out, &failures(patches)?)?;
        Some(out)
    }
}

impl Island {
    /// Adds what [`Built::keep_whole`] has returned. Returns the sites that are still to be written, and the patched
    /// functions that these are about.
    pub(super) fn put_whole(
        &mut self,
        kept: &[u8],
        image: Image<'_>,
        first: u32,
        places: &mut Places<'_>,
        patches: &mut Patches,
    ) -> Option<(Vec<Open>, HashSet<u64>)> {
        let mut reader = Reader(kept);
        self.align_stubs();
        let [start, base, bias, id] = [(); 4].map(|()| reader.long());
        let more = self.end().wrapping_sub(start?);
        let others = [
            self.base.wrapping_sub(base?),
            image.bias.wrapping_sub(bias?),
        ];
        if !more.is_multiple_of(PAGE) || others != [more; 2] || id? != u64::from(first) {
            return None;
        }
        let there = |at: u64| at.wrapping_add(more);
        let mut pads = Vec::new();
        for [start, end, is_found, found] in reader.addresses()? {
            let now = places(there(start)..there(end));
            if now != (is_found != 0).then(|| there(found)) {
                return None;
            }
            pads.extend(now.map(|at| at..at + PLACE));
        }
        let Reader(code) = reader.section()?;
        let from = self.code.len();
        self.code.extend_from_slice(code);
        for [at] in reader.addresses()? {
            shift(&mut self.code[from..], usize::try_from(at).ok()?, more)?;
        }
        let table: Vec<[u64; 2]> = reader.addresses()?.collect();
        // Later additions need room.
        self.check_room(8 * table.len() + 4096).ok()?;
        let offset = from as u32;
        let entries = table.into_iter().map(|[start, at]| {
            let [start, at] = [start, at].map(|part| offset.wrapping_add(part as u32));
            self.frames.table_entry(start, at)
        });
        self.table.extend(entries);
        let stubs = reader.addresses()?;
        self.stubs
            .extend(stubs.map(|[start, body, slow, original, entry]| Stub {
                start: there(start),
                body: there(body),
                slow: there(slow),
                original: match original {
                    0 => 0,
                    at => there(at),
                },
                entry: there(entry),
            }));
        put_writes(&mut reader, more, image, &pads, patches)?;
        for leads in [&mut patches.traps, &mut patches.sites, &mut patches.faults] {
            let rows = reader.addresses()?;
            leads.extend(rows.map(|[at, to]| Lead::from((there(at), there(to)))));
        }
        for spans in [&mut patches.ways, &mut patches.leaving] {
            let rows = reader.addresses()?;
            spans.extend(rows.map(|[start, end]| Span::from(there(start)..there(end))));
        }
        let copies = reader.addresses()?;
        let copies = copies.map(|[original, before, copy, flags]| Copied {
            original: there(original),
            before: there(before),
            copy: there(copy),
            call: flags & 1 != 0,
            leads: flags & 2 != 0,
        });
        patches.copies.extend(copies);
        let open = reader.addresses()?.map(|site| open_site(site, more));
        let open = open.collect::<Option<_>>()?;
        let hosts = reader.addresses()?.map(|[host]| host).collect();
        reader.failures(patches)?;
        reader.0.is_empty().then_some((open, hosts))
    }
}

/// Adds what is written over the module, or into `pads`.
fn put_writes(
    reader: &mut Reader<'_>,
    more: u64,
    image: Image<'_>,
    pads: &[Range<u64>],
    patches: &mut Patches,
) -> Option<()> {
    let writes = reader.addresses()?;
    let mut written = reader.section()?;
    for [at, len, held] in writes {
        let at = at.wrapping_add(more);
        let mut bytes = written.bytes(usize::try_from(len).ok()?)?.to_vec();
        if let Some(held) = held.checked_sub(1) {
            shift(&mut bytes, usize::try_from(held).ok()?, more)?;
        }
        let start = at.wrapping_sub(image.bias);
        if (image.code)(start..start.checked_add(len)?).is_none() {
            let end = at.checked_add(len)?;
            pads.iter().find(|pad| pad.start <= at && end <= pad.end)?;
        }
        patches.writes.push((at, bytes));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_by_how_they_differ() {
        let at = |moved: u64| {
            let mut bytes = vec![1, 2, 3];
            bytes.extend((0x5555_1234_0010 + moved).to_le_bytes());
            bytes.extend([4; 40]);
            bytes.extend((0xAAAA_0000_0000 + moved).to_le_bytes());
            bytes
        };
        assert_eq!(absolute(&at(0), &at(MOVE)), Some(vec![3, 51]));
        assert_eq!(absolute(&at(0), &at(0)), Some(vec![]));
        assert_eq!(absolute(&at(0), &at(MOVE + 1)), None);
        assert_eq!(absolute(&at(0), &at(MOVE + PAGE)), None);
        assert_eq!(absolute(&at(0)[..55], &at(MOVE)[..55]), None);
        let mut bytes = at(0);
        shift(&mut bytes, 3, MOVE).expect("inside");
        shift(&mut bytes, 51, MOVE).expect("inside");
        assert_eq!(bytes, at(MOVE));
        assert_eq!(shift(&mut bytes, 52, MOVE), None);
    }

    #[test]
    fn sites_that_are_still_open_come_back() {
        let extras = [
            Extra::None,
            Extra::HopSlot(0x1234),
            Extra::Near,
            Extra::HopDonor {
                slot: 0x1238,
                host: 0x1000,
            },
            Extra::Pun { free: 3 },
        ];
        let ways = [Via::Nothing, Via::Free(7), Via::Kept(31)];
        for extra in extras {
            for via in ways {
                let later = |more: u64| {
                    [
                        Later::Pun(2),
                        Later::Near,
                        Later::Donor {
                            slot: 0x5555_0000_1238 + more,
                            host: 0x1000,
                        },
                        Later::Literal(None),
                        Later::Literal(Some(0x2000)),
                        Later::Farther,
                    ]
                };
                for (before, later) in later(0).into_iter().zip(later(MOVE)) {
                    let site = |later: Later, stub: u64| Open {
                        patch: 0x1230,
                        patch_len: 8,
                        extra: extra.clone(),
                        via,
                        later,
                        stub,
                    };
                    let one = site(before, 0x5554_0000_0100);
                    let other = site(later, 0x5554_0000_0100 + MOVE);
                    assert_eq!(open_site(numbers(&one), MOVE), Some(other));
                }
            }
        }
        assert_eq!(open_site([9; 11], 0), None);
    }
}
