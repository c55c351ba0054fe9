//! Jump tables in the data, with 32-bit distances from the table's own start.
//!
//! Tables of addresses need not be read to find their targets: their entries are relocated, or are words of the data.
//! They are still read to tell them from other data that holds addresses of code.

use std::collections::HashSet;

use hodo_isa::code::Reference;

use crate::bits::Bits;
use crate::image::{Image, Text};
use crate::pieces::Piece;
use crate::targets::Targets;

/// The maximum number of entries of a table of distances.
const ENTRIES: usize = 4096;
/// The number of words of tables that are read for each byte of a piece. Code made by compilers needs less than one.
const WORDS: usize = 4;
/// Pieces that are no functions and larger than this are not read to find their tables: they are code without symbols,
/// in which nothing is known of any place.
const UNKNOWN: u64 = 1 << 20;

/// The targets of tables.
#[derive(Default)]
pub(crate) struct Tabled {
    /// The doubtful ones among the targets.
    pub doubtful: HashSet<u64>,
    /// Pieces with a table that may lead out of them, and the targets.
    pub leave: Vec<(usize, u64)>,
}

/// Marks the targets of tables. `bases` are the data addresses that code forms, with the piece that forms them;
/// `others` those of all code, but no constants, if they are not all there.
pub(crate) fn mark(
    image: &Image<'_>,
    pieces: &[Piece],
    (mut bases, others): (Vec<(u64, usize)>, Option<&Bits>),
    targets: &Targets,
) -> Tabled {
    let mut tabled = Tabled::default();
    let unit = image.isa.unit();
    bases.sort_unstable();
    bases.dedup();
    let same = bases.chunk_by(|a, b| a.0 == b.0);
    let mut groups = same.peekable();
    while let Some(group) = groups.next() {
        let base = group[0].0;
        let between_code = image.text_at(base);
        let Some(data) = image.data_at(base).or(between_code) else {
            continue;
        };
        // What begins at the next address is most likely something else. The table may still continue there, as long as
        // its entries lead into the function that uses it.
        let next = groups.peek().map_or(u64::MAX, |next| next[0].0);
        let other = others.and_then(|others| others.first(base + 1..data.end()));
        let next = next.min(other.unwrap_or(u64::MAX));
        let mut at = base;
        // If the image has a fixed address, the entries may be addresses.
        let word = data.slice(base, base.saturating_add(4)).as_chunks::<4>().0;
        let word = word.first().map(|word| u32::from_le_bytes(*word).into());
        let short = image.fixed
            && image.isa.has_short_addresses()
            && word.is_some_and(|word: u64| image.text_at(word).is_some());
        for entry in data.slice(base, data.end()).as_chunks::<4>().0 {
            let distance = i64::from(i32::from_le_bytes(*entry));
            let target = match short {
                true => u32::from_le_bytes(*entry).into(),
                false => base.wrapping_add_signed(distance),
            };
            // A target that is not code, or is never the start of an instruction, is no entry: this is other data.
            if image.text_at(target).is_none() || !target.is_multiple_of(unit) {
                break;
            }
            let own = || {
                group.iter().any(|&(_, piece)| {
                    let piece = &pieces[piece];
                    piece.start <= target && target < piece.limit
                })
            };
            if (at >= next || between_code.is_some()) && !own() {
                break;
            }
            if between_code.is_some() {
                (at..at + 4).for_each(|addr| targets.data.set(addr));
            }
            targets.mark(target);
            if image.isa.tracks_registers() && !own() {
                tabled
                    .leave
                    .extend(group.iter().map(|&(_, piece)| (piece, target)));
            }
            if targets.doubtful.get(target) {
                tabled.doubtful.insert(target);
            }
            at += 4;
        }
    }
    tabled
}

/// Returns the places of the words of the tables of addresses that begin at `bases`.
pub(crate) fn words(image: &Image<'_>, mut bases: Vec<u64>) -> HashSet<u64> {
    bases.sort_unstable();
    bases.dedup();
    let mut words = HashSet::new();
    for (index, &base) in bases.iter().enumerate() {
        let Some(data) = image.data_at(base) else {
            continue;
        };
        let next = bases.get(index + 1).copied().unwrap_or(u64::MAX);
        let end = data.end().min(next);
        for (at, word) in (base..)
            .step_by(8)
            .zip(data.slice(base, end).as_chunks::<8>().0)
        {
            if image.text_at(u64::from_le_bytes(*word)).is_none() {
                break;
            }
            words.insert(at);
        }
    }
    words
}

/// Marks the targets of tables whose distances are relative to a place in the piece itself. It is unknown which place
/// belongs to which table: all are considered possible, because wrong marks do no harm. If there are too many, all
/// instructions are marked.
pub(crate) fn mark_distances(image: &Image<'_>, targets: &Targets, piece: &Piece, text: &Text<'_>) {
    let range = piece.start..piece.end;
    if piece.function.is_none() && range.end - range.start > UNKNOWN {
        targets.mark_all(range);
        return;
    }
    let code = || {
        let code = text.slice(piece.start, piece.end);
        image.isa.sweep(code, piece.start)
    };
    let has_room = !image.isa.has_short_distances() && mark_by_tables(image, targets, piece, text);
    if !has_room {
        code().for_each(|insn| targets.mark(insn.addr));
    }
}

/// Marks the targets of all pairs of a table and a place. Returns whether there were few enough.
fn mark_by_tables(image: &Image<'_>, targets: &Targets, piece: &Piece, text: &Text<'_>) -> bool {
    let range = piece.start..piece.end;
    let mut places = Vec::new();
    let mut tables = Vec::new();
    let mut words = vec![0];
    for insn in image
        .isa
        .sweep(text.slice(piece.start, piece.end), piece.start)
    {
        words.extend(insn.word);
        if let Reference::Forms(addr) = insn.reference {
            if range.contains(&addr) {
                places.push(addr);
            } else if image.data_at(addr).is_some() {
                tables.push(addr);
            }
        }
    }
    for list in [&mut places, &mut tables] {
        list.sort_unstable();
        list.dedup();
    }
    words.sort_unstable();
    words.dedup();
    let mut left = (range.end - range.start) as usize * WORDS;
    // At least one word is read for each.
    let least = [places.len(), tables.len(), words.len()];
    if least.into_iter().fold(1, usize::saturating_mul) > left {
        return false;
    }
    let tables = tables.iter().flat_map(|table| {
        let words = words.iter();
        words.map(move |&word| table.wrapping_add_signed(i64::from(word)))
    });
    for table in tables {
        let data = image.data_at(table);
        let entries = data.map_or(&[][..], |data| data.slice(table, data.end()));
        let entries = entries.as_chunks::<4>().0.iter().take(ENTRIES);
        for &place in &places {
            let mut looked = 1;
            for entry in entries.clone() {
                let distance = i64::from(i32::from_le_bytes(*entry));
                let target = place.wrapping_add_signed(distance);
                if !range.contains(&target) {
                    break;
                }
                targets.mark(target);
                looked += 1;
            }
            let Some(rest) = left.checked_sub(looked) else {
                return false;
            };
            left = rest;
        }
    }
    true
}
