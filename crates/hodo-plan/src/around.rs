//! Finds the code that must be swept to plan probes at a few places.
//!
//! A plan needs to know everything that leads to the code around a probe, which may come from anywhere. So all code is
//! searched for bytes that may be an operand with such a target. Only pieces with such an operand are decoded.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use hodo_isa::code::Operand;
use hodo_symbols::Symbols;

use crate::bits::Bits;
use crate::image::{Image, Text};
use crate::pieces::{self, Piece};

/// Bytes around a piece with a probe in which padding and what leads there matter: more than short jumps reach.
const NEAR: u64 = 256;
/// An operand may be this far from the address that matters: data has up to 64 bytes, and immediate operands come after
/// a distance.
const SLACK: u64 = 72;
/// The bytes of code that are searched at once.
const CHUNK: usize = 1 << 20;
/// Targets are looked up by blocks of this size first.
const BLOCK: u64 = 256;
/// How many addresses in the midst of a table of distances may be taken for the beginning of another by mistake.
const MISTAKEN: usize = 4;
/// If the code around the probes is more than this part of all, everything is swept.
const LARGEST: u64 = 4;
/// Constants of 32 bits that are addresses from here on have another sign than the addresses, in some instructions.
const SIGNED: u64 = 1 << 31;

/// The part of an image that is swept.
pub(crate) struct Part {
    /// By piece: whether it is swept.
    pub swept: Vec<bool>,
    /// The code whose targets are noted. Sorted, and the ranges do not overlap.
    pub ranges: Vec<Range<u64>>,
    /// The addresses in the data that code forms, without constants: a table ends where another one begins. Most bytes
    /// that may be a constant are anything else, and each would cut off the rest of a table.
    pub bases: Bits,
}

impl Part {
    /// The part that is needed for probes at these addresses. `None`: all of it.
    pub fn new(
        image: &Image<'_>,
        (symbols, pieces): (&Symbols, &[Piece]),
        addresses: &[u64],
        threads: usize,
    ) -> Option<Self> {
        let nothing = 0..0;
        let nowhere = (&nothing, &nothing);
        let isa = image.isa;
        if !isa.operands((&[], 0), 0..0, nowhere, false, &mut |_| {}) {
            return None;
        }
        let probed = probed(image, (symbols, pieces), addresses);
        let mut part = Self {
            swept: vec![false; pieces.len()],
            ranges: Vec::new(),
            bases: Bits::of(std::iter::empty()),
        };
        let size = |piece: &Piece| piece.limit - piece.start;
        let all: u64 = pieces.iter().map(size).sum();
        let needed: u64 = probed.iter().map(|&index| size(&pieces[index])).sum();
        if needed > all / LARGEST {
            return None;
        }
        if probed.is_empty() {
            return Some(part);
        }
        for index in probed {
            let piece = &pieces[index];
            let Some(text) = image.text_at(piece.start) else {
                continue;
            };
            let start = piece.start.saturating_sub(NEAR).max(text.addr);
            let end = (piece.limit + NEAR).min(text.end());
            match part.ranges.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(end),
                _ => part.ranges.push(start..end),
            }
        }
        for range in &part.ranges {
            let first = pieces.partition_point(|piece| piece.limit <= range.start);
            for (index, piece) in pieces.iter().enumerate().skip(first) {
                if piece.start >= range.end {
                    break;
                }
                part.swept[index] = true;
            }
        }
        part.bases = Bits::new(&image.data);
        let search = Search::new(image, &part)?;
        if image.fixed && search.span.end > SIGNED {
            return None;
        }
        let places = search.run(threads);
        for at in places {
            if let Some(index) = pieces::find(pieces, at) {
                part.swept[index] = true;
            }
        }
        Some(part)
    }
}

/// The pieces of known code in which an instruction begins at one of the addresses, in order. The others have nothing
/// to be probed.
fn probed(
    image: &Image<'_>,
    (symbols, pieces): (&Symbols, &[Piece]),
    addresses: &[u64],
) -> Vec<usize> {
    let fragments = &symbols.fragments;
    let is_known = |piece: &Piece| {
        let is_fragment = || fragments.binary_search_by_key(&piece.start, |part| part.addr);
        piece.function.is_some() || is_fragment().is_ok()
    };
    let mut addresses = addresses.to_vec();
    addresses.sort_unstable();
    let mut found = Vec::new();
    let mut rest = &addresses[..];
    while let [addr, ..] = *rest {
        let Some(index) = pieces::find(pieces, addr) else {
            rest = &rest[1..];
            continue;
        };
        let piece = &pieces[index];
        let here;
        (here, rest) = rest.split_at(rest.partition_point(|&addr| addr < piece.limit));
        if is_known(piece) && has_instruction(image, piece, here) {
            found.push(index);
        }
    }
    found
}

/// Returns whether an instruction of a piece begins at one of these addresses, which are sorted.
fn has_instruction(image: &Image<'_>, piece: &Piece, addresses: &[u64]) -> bool {
    let (Some(text), Some(last)) = (image.text_at(piece.start), addresses.last()) else {
        return false;
    };
    let begins = |start: u64| {
        let insns = image.isa.sweep(text.slice(start, piece.end), start);
        let mut insns = insns.take_while(|insn| insn.addr <= *last);
        insns.any(|insn| addresses.binary_search(&insn.addr).is_ok())
    };
    // Ranges of signal handlers' returns in the unwind tables begin one byte early.
    let code = text.slice(piece.start + 1, piece.end);
    begins(piece.start) || image.isa.is_signal_return(code) && begins(piece.start + 1)
}

/// The search for operands that lead to the ranges of a part.
struct Search<'s> {
    image: &'s Image<'s>,
    part: &'s Part,
    /// The code in which such operands may lead.
    text: Range<u64>,
    /// All of the image.
    span: Range<u64>,
    /// By block of the code: whether there may be a range.
    blocks: Vec<bool>,
}

/// What is found in a chunk of the code.
#[derive(Default)]
struct Found {
    /// Operands that may lead to the ranges.
    places: Vec<u64>,
    /// Tables that may lead anywhere in the code, with the place that forms their address.
    tables: Vec<(u64, u64)>,
}

impl<'s> Search<'s> {
    fn new(image: &'s Image<'s>, part: &'s Part) -> Option<Self> {
        let start = image.text.first()?.addr.saturating_sub(SLACK);
        let text = start..image.text.last()?.end();
        let mut span = text.clone();
        for data in &image.data {
            span.start = span.start.min(data.addr);
            span.end = span.end.max(data.end());
        }
        let mut blocks = vec![false; ((text.end - text.start) / BLOCK + 1) as usize];
        for range in &part.ranges {
            let first = (range.start.saturating_sub(SLACK).max(start) - start) / BLOCK;
            let last = (range.end - 1 - start) / BLOCK;
            blocks[first as usize..=last as usize].fill(true);
        }
        Some(Self {
            image,
            part,
            text,
            span,
            blocks,
        })
    }

    /// Returns whether what leads to an address matters.
    fn matters(&self, addr: u64) -> bool {
        let block = addr.wrapping_sub(self.text.start) / BLOCK;
        if !self.blocks.get(block as usize).is_some_and(|&may| may) {
            return false;
        }
        let ranges = &self.part.ranges;
        let at = ranges.partition_point(|range| range.end <= addr);
        ranges
            .get(at)
            .is_some_and(|range| addr + SLACK >= range.start)
    }

    /// Returns the places in the code that may lead to the ranges.
    fn run(&self, threads: usize) -> Vec<u64> {
        let runs = self.image.text.iter().filter(|text| !text.plt);
        let chunks = runs.flat_map(|text| {
            let starts = (0..text.bytes.len()).step_by(CHUNK);
            starts.map(move |start| (text, start..(start + CHUNK).min(text.bytes.len())))
        });
        let chunks: Vec<(&Text<'_>, Range<usize>)> = chunks.collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut found = Found::default();
            while let Some((text, range)) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.chunk(text, range.clone(), &mut found);
            }
            found
        };
        let mut all = Found::default();
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads.min(chunks.len()))
                .map(|_| scope.spawn(work))
                .collect();
            let first = std::iter::once(work());
            let others = others.into_iter().map(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            for found in first.chain(others) {
                all.places.extend(found.places);
                all.tables.extend(found.tables);
            }
        });
        all.tables.sort_unstable();
        let same = all.tables.chunk_by(|a, b| a.0 == b.0);
        let lead = same.filter(|group| self.leads(group[0].0));
        all.places.extend(lead.flatten().map(|&(_, at)| at));
        all.places
    }

    fn chunk(&self, text: &Text<'_>, places: Range<usize>, found: &mut Found) {
        let Self { image, part, .. } = self;
        let ranges = (&self.text, &self.span);
        let code = (text.bytes, text.addr);
        let mut operand = |operand: Operand| {
            let Operand { at, to, .. } = operand;
            if self.matters(to) {
                found.places.push(at);
            }
            if operand.forms && image.data_at(to).is_some() {
                if !operand.constant {
                    part.bases.set(to);
                }
                if self.entries(to).next().is_some() {
                    found.tables.push((to, at));
                }
            }
        };
        image
            .isa
            .operands(code, places, ranges, image.fixed, &mut operand);
    }

    /// The targets of the table of distances at an address, if there is one: perhaps also those of tables after it.
    fn entries(&self, base: u64) -> impl Iterator<Item = u64> {
        let data = self.image.data_at(base);
        let entries = data.map_or(&[][..], |data| data.slice(base, data.end()));
        let entries = entries.as_chunks::<4>().0.iter();
        let targets =
            entries.map(move |entry| base.wrapping_add_signed(i32::from_le_bytes(*entry).into()));
        targets.take_while(|&target| self.image.text_at(target).is_some())
    }

    /// Returns whether a table may lead to the ranges.
    fn leads(&self, base: u64) -> bool {
        let mut others = 0;
        for (at, target) in (base..).step_by(4).zip(self.entries(base)) {
            others += usize::from(at > base && self.part.bases.get(at));
            if others > MISTAKEN {
                return false;
            }
            if self.matters(target) {
                return true;
            }
        }
        false
    }
}
