//! Makes stubs that can be kept.
//!
//! Stubs are built a second time at other addresses: the words that differ are those that depend on addresses, and the
//! amounts show on which. The differences are chosen so that each changes the lowest byte of a word. The resulting
//! parts are put together at a third place, and are kept only if the result is byte for byte the same as stubs built
//! there.

use std::collections::HashMap;
use std::ops::Range;

use hodo_abi::Span;
use hodo_codegen::native::patch::{FAR_VIA, MOVABLE};
use hodo_trace::format::record;

use super::built::{Built, difference, failures, put, section};
use super::whole::MOVE;
use super::{ALIGN_BITS, CLASS_BITS, CONSTANT, Class, NONE, Place, is_forged};
use crate::open_site::Open;
use crate::{
    Image, Island, Lead, Patches, Places, Recording, Sites, Stub, Traced, TracedCall, Used,
    write_later,
};

/// Where the second and the third place are, relative to the first: the island; the first stub in it, by a multiple of
/// 16; the module; ids.
const MOVES: [(u64, u64, u64, u32); 2] = [
    (0x31 << 32, 0x10_0050, (0x31 << 32) + 0x20_0030, 1),
    (0x1B_1234_5000, 0x33_3370, 0x1B_1246_8450, 0x305),
];

impl Island {
    /// Like [`Self::add_module`], but also returns what can be kept of that for [`Self::add_kept`]. `first`: no id is
    /// lower. There are no regions.
    pub fn add_and_keep(
        &mut self,
        sites: Sites<'_>,
        image: Image<'_>,
        recording: Recording,
        first: u32,
        places: &mut Places<'_>,
        patches: &mut Patches,
    ) -> Option<Vec<u8>> {
        let can = self.is_plain() && sites.regions.is_empty() && *patches == Patches::default();
        if !can {
            self.add_module(sites, image, recording, places, patches);
            return None;
        }
        self.align_stubs();
        let from = (self.code.len(), self.stubs.len(), self.table.len());
        let mut asked = Vec::new();
        let mut asking = |range: Range<u64>| {
            let found = places(range.clone());
            asked.push((range, found));
            found
        };
        let (open, hosts) = self.build_module(sites, image, recording, &mut asking, patches);
        let built = Built::new(
            self,
            from,
            patches.clone(),
            open.clone(),
            (image.bias, first),
        );
        write_later(open, &hosts, image, places, patches);
        let built = Built { asked, ..built };
        if !MOVABLE {
            // Such code has addresses of pads, spread over several instructions.
            if FAR_VIA.is_some() && !built.asked.is_empty() {
                return None;
            }
            let other = self.build_at(&built, (MOVE, 0, MOVE, 0), sites, image, recording)?;
            let kept = built.keep_whole(&other, &hosts)?;
            return is_same(&kept, &other, image, self.capacity).then_some(kept);
        }
        let [second, third] = MOVES;
        let other = self.build_at(&built, second, sites, image, recording)?;
        let kept = keep(&built, &other)?;
        let expected = self.build_at(&built, third, sites, image, recording)?;
        is_same(&kept, &expected, image, self.capacity).then_some(kept)
    }

    /// Builds the same stubs at other addresses.
    fn build_at(
        &self,
        built: &Built,
        (base, start, bias, id): (u64, u64, u64, u32),
        sites: Sites<'_>,
        image: Image<'_>,
        recording: Recording,
    ) -> Option<Built> {
        let origin = built.place.start - built.place.base + start;
        let used = Used {
            bytes: usize::try_from(origin).ok()?,
            frames: 0,
        };
        let mut island = Self::resume(self.base.checked_add(base)?, self.capacity, used);
        let moved = |old: u32| {
            old.checked_add(id)
                .filter(|&id| id <= record::MAX_FUNCTION_ID)
        };
        let mut functions: Vec<Traced<'_>> = sites.functions.to_vec();
        for traced in &mut functions {
            traced.id = moved(traced.id)?;
        }
        let mut libcalls: Vec<TracedCall<'_>> = sites.libcalls.to_vec();
        for traced in &mut libcalls {
            traced.id = moved(traced.id)?;
        }
        let sites = Sites {
            functions: &functions,
            libcalls: &libcalls,
            ..sites
        };
        let bias = image.bias.wrapping_add(bias);
        let image = Image { bias, ..image };
        let mut patches = Patches::default();
        let places = &mut built.places(base);
        let (open, _) = island.build_module(sites, image, recording, places, &mut patches);
        let first = built.place.first.checked_add(id)?;
        let other = Self::built(&island, patches, open, (bias, first));
        let asked = built.asked.iter().map(|(range, found)| {
            let range = range.start.wrapping_add(base)..range.end.wrapping_add(base);
            (range, found.map(|at| at.wrapping_add(base)))
        });
        Some(Built {
            asked: asked.collect(),
            ..other
        })
    }

    fn built(island: &Self, patches: Patches, open: Vec<Open>, module: (u64, u32)) -> Built {
        Built::new(island, (0, 0, 0), patches, open, module)
    }
}

/// Whether the parts, put together, give the expected result.
fn is_same(kept: &[u8], expected: &Built, image: Image<'_>, capacity: u64) -> bool {
    let Place {
        base,
        start,
        bias,
        first,
    } = expected.place;
    let used = Used {
        bytes: (start - base) as usize,
        frames: 0,
    };
    let mut island = Island::resume(base, capacity, used);
    let mut patches = Patches::default();
    let image = Image { bias, ..image };
    let put = match MOVABLE {
        true => island.put_together(kept, image, first, &mut patches),
        false => island.put_whole(kept, image, first, &mut expected.places(0), &mut patches),
    };
    let Some((open, _)) = put else {
        return false;
    };
    let made = Island::built(&island, patches, open, (bias, first));
    made.code == expected.code
        && made.table == expected.table
        && made.stubs == expected.stubs
        && made.patches == expected.patches
        && made.open == expected.open
}

/// Rows of words; `None` if a value does not fit a word.
fn rows<const N: usize>(
    out: &mut Vec<u8>,
    rows: impl Iterator<Item = [Option<u32>; N]>,
) -> Option<()> {
    let mut bytes = Vec::new();
    for word in rows.flatten() {
        put(&mut bytes, word?);
    }
    section(out, &bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(bytes))
}

/// The words that differ between two places, and their classes.
fn fields(one: &Built, other: &Built) -> Option<Vec<(usize, Class)>> {
    let (here, there) = (&one.place, &other.place);
    if one.code.len() != other.code.len() {
        return None;
    }
    let mut fields = Vec::new();
    let mut at = 0;
    while let Some(offset) = difference(&one.code[at..], &other.code[at..]) {
        at += offset;
        let more = word(&other.code, at)?.wrapping_sub(word(&one.code, at)?);
        let is_it = |class: &Class| {
            let id = there.first - here.first;
            let addr = |place: &Place| place.start + at as u64;
            let before = here.more(*class, addr(here), 0);
            there.more(*class, addr(there), id).wrapping_sub(before) == more
        };
        let class = Class::ALL.into_iter().find(is_it)?;
        fields.push((at, class));
        at += class.len();
    }
    Some(fields)
}

/// A part of code in the form in which it is kept.
#[derive(PartialEq, Eq, Hash)]
struct Part {
    bytes: Vec<u8>,
    fields: Vec<(usize, Class)>,
}

/// Parts of code, which [`super::Island::add_kept`] puts together.
struct Parts<'a> {
    built: &'a Built,
    fields: &'a [(usize, Class)],
    common: HashMap<Part, u32>,
    /// The shared parts in the order of their numbers, and all parts.
    listed: Vec<u8>,
    all: Vec<u8>,
    /// The lowest and the highest link-time address that code leads to.
    reach: (u32, u32),
}

impl Parts<'_> {
    /// A part, and the id of its function.
    fn part(&mut self, range: Range<usize>) -> Option<(Part, u32)> {
        let place = &self.built.place;
        let mut bytes = self.built.code.get(range.clone())?.to_vec();
        let first = self.fields.partition_point(|(at, _)| *at < range.start);
        let inside = self.fields[first..].iter();
        let mut fields = Vec::new();
        let mut function = None;
        for &(at, class) in inside.take_while(|(at, _)| *at < range.end) {
            let offset = at - range.start;
            if offset + class.len() > bytes.len() {
                return None;
            }
            let now = word(&bytes, offset)?;
            if class == Class::Id {
                function.get_or_insert(now & record::MAX_FUNCTION_ID);
            }
            let id = function.unwrap_or_default();
            let addr = place.start + at as u64;
            let least = now.wrapping_sub(place.more(class, addr, id));
            bytes[offset..offset + 4].copy_from_slice(&least.to_le_bytes());
            match class {
                Class::Module => self.reach = (self.reach.0.min(least), self.reach.1.max(least)),
                Class::Halves => {
                    let upper = word(&bytes, offset + 8)?;
                    if u64::from(upper) != place.in_module(least) >> 32 {
                        return None;
                    }
                    bytes[offset + 8..offset + 12].fill(0);
                }
                _ => {}
            }
            fields.push((offset, class));
        }
        let id = function.map_or(Some(0), |id| id.checked_sub(place.first));
        Some((Part { bytes, fields }, id?))
    }

    /// A part that many stubs share.
    fn add_common(&mut self, range: Range<usize>, align: u32) -> Option<()> {
        let (part, id) = self.part(range)?;
        let next = self.common.len() as u32 + 1;
        let index = match self.common.get(&part) {
            Some(&index) => index,
            None => {
                put(&mut self.listed, part.bytes.len() as u32);
                put(&mut self.listed, part.fields.len() as u32);
                for &(at, class) in &part.fields {
                    put(&mut self.listed, (at as u32) << CLASS_BITS | class as u32);
                }
                self.listed.extend(&part.bytes);
                self.common.insert(part, next);
                next
            }
        };
        put(&mut self.all, index << ALIGN_BITS | align);
        put(&mut self.all, id);
        Some(())
    }

    /// A part that is not shared. `moved`: it consists of displaced instructions.
    fn add_own(&mut self, range: Range<usize>, align: u32, moved: bool) -> Option<()> {
        let code = self.built.code.get(range.clone())?;
        let (Part { bytes, fields }, _) = self.part(range)?;
        let forged = |&(at, class): &(usize, Class)| is_forged(code, at, class);
        let is_other = |&(_, class): &(usize, Class)| match moved {
            true => !matches!(class, Class::Module | Class::Halves),
            false => class != Class::Tables,
        };
        if fields.iter().any(is_other) || (moved && fields.iter().any(forged)) {
            return None;
        }
        put(&mut self.all, align);
        put(&mut self.all, bytes.len() as u32);
        put(&mut self.all, fields.len() as u32);
        for (at, class) in fields {
            put(&mut self.all, (at as u32) << CLASS_BITS | class as u32);
        }
        self.all.extend(bytes);
        Some(())
    }

    /// Adds all stubs: the code before the body, the body, the slow path, and the table's entry.
    fn add_stubs(&mut self) -> Option<()> {
        let built = self.built;
        let (code, stubs) = (&built.code, &built.stubs);
        let offset = |at: u64| built.offset(at).map(|at| at as usize);
        let mut tables: Vec<usize> = built.table.iter().map(|entry| entry[1] as usize).collect();
        tables.sort_unstable();
        for (index, stub) in stubs.iter().enumerate() {
            let [start, body, slow] = [stub.start, stub.body, stub.slow].map(offset);
            let (start, body, slow) = (start?, body?, slow?);
            let next = match stubs.get(index + 1) {
                Some(next) => offset(next.start)?,
                None => code.len(),
            };
            self.add_common(start..body, 4)?;
            self.add_own(body..slow, 0, true)?;
            let mut end = next;
            let table = tables[tables.partition_point(|&at| at < slow)..].first();
            if let Some(&table) = table.filter(|&&table| table < next) {
                end = table;
            }
            self.add_common(without_filling(code, slow..end)?, 0)?;
            if end < next {
                self.add_own(without_filling(code, end..next)?, 2, false)?;
            }
        }
        Some(())
    }

    /// Extends the range of addresses that code leads to by those of all writes, done or still to come.
    fn reach_sites(&mut self) -> Option<()> {
        let built = self.built;
        let written = built.patches.writes.iter().map(|(at, _)| built.addr(*at));
        let open = built.open.iter().map(|site| u32::try_from(site.patch).ok());
        for addr in written.chain(open) {
            let addr = addr?;
            self.reach = (self.reach.0.min(addr), self.reach.1.max(addr));
        }
        Some(())
    }
}

/// The range without the padding at its end.
fn without_filling(code: &[u8], range: Range<usize>) -> Option<Range<usize>> {
    let bytes = code.get(range.clone())?;
    let most = bytes.len().min(15);
    let filling = bytes.iter().rev().take(most);
    let filling = filling.take_while(|&&byte| byte == 0xCC).count();
    Some(range.start..range.end - filling)
}

/// The bytes to keep.
fn keep(built: &Built, other: &Built) -> Option<Vec<u8>> {
    if built.stubs.is_empty() || !built.can_be_kept() {
        return None;
    }
    let fields = fields(built, other)?;
    let mut parts = Parts {
        built,
        fields: &fields,
        common: HashMap::new(),
        listed: Vec::new(),
        all: Vec::new(),
        reach: (u32::MAX, 0),
    };
    parts.add_stubs()?;
    parts.reach_sites()?;
    let mut head = Vec::new();
    for number in [
        parts.reach.0,
        parts.reach.1,
        u32::try_from(built.code.len()).ok()?,
        built.table.len() as u32,
    ] {
        put(&mut head, number);
    }
    let mut out = Vec::new();
    section(&mut out, &head)?;
    section(&mut out, &parts.listed)?;
    section(&mut out, &parts.all)?;
    rows(&mut out, built.table.iter().map(|entry| entry.map(Some)))?;
    let stub = |stub: &Stub| {
        let original = match stub.original {
            0 => Some(NONE),
            at => built.addr(at),
        };
        let [start, body, slow, entry] =
            [stub.start, stub.body, stub.slow, stub.entry].map(|at| built.offset(at));
        [start, body, slow, original, entry]
    };
    rows(&mut out, built.stubs.iter().map(stub))?;
    section(&mut out, &writes(built, other)?)?;
    keep_places(built, &mut out)?;
    section(&mut out, &failures(&built.patches)?)?;
    Some(out)
}

/// Adds which sites lead to which stubs, and where moved instructions came from.
fn keep_places(built: &Built, out: &mut Vec<u8>) -> Option<()> {
    let patches = &built.patches;
    let lead = |lead: &Lead| [built.addr(lead.at), built.offset(lead.to)];
    rows(out, patches.traps.iter().map(lead))?;
    rows(out, patches.sites.iter().map(lead))?;
    let way = |way: &Span| [built.addr(way.start), built.addr(way.end)];
    rows(out, patches.ways.iter().map(way))?;
    let copies = patches.copies.iter().map(|copied| {
        [
            built.addr(copied.original),
            built.offset(copied.before),
            built.offset(copied.copy),
        ]
    });
    rows(out, copies)?;
    let open = built.open.iter().map(|site| {
        let free = site.as_pun().map(u32::from);
        let patch = u32::try_from(site.patch).ok();
        let stub = built.offset(site.stub);
        [patch, Some(site.patch_len.into()), free, stub]
    });
    rows(out, open)
}

/// The writes over sites: their number, then for each its address, its length, the offset of a distance to a stub in
/// it, and the bytes.
fn writes(built: &Built, other: &Built) -> Option<Vec<u8>> {
    let distance = |place: &Place| place.start.wrapping_sub(place.bias) as u32;
    let more = distance(&built.place);
    let expected = distance(&other.place).wrapping_sub(more);
    let (all, others) = (&built.patches.writes, &other.patches.writes);
    if all.len() != others.len() {
        return None;
    }
    let mut out = Vec::new();
    put(&mut out, u32::try_from(all.len()).ok()?);
    for ((at, bytes), (_, others)) in all.iter().zip(others) {
        let mut bytes = bytes.clone();
        let mut field = CONSTANT;
        if let Some(at) = difference(&bytes, others) {
            let now = word(&bytes, at)?;
            if word(others, at)?.wrapping_sub(now) != expected {
                return None;
            }
            bytes[at..at + 4].copy_from_slice(&now.wrapping_sub(more).to_le_bytes());
            field = u32::try_from(at).ok().filter(|&at| at < CONSTANT)?;
        }
        put(
            &mut out,
            u32::try_from(at.wrapping_sub(built.place.bias)).ok()?,
        );
        put(&mut out, (bytes.len() as u32) << 8 | field);
        out.extend(bytes);
    }
    Some(out)
}
