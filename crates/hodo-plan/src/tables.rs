//! Jump tables in the data, of 32-bit distances from the table's own start.
//!
//! Tables of addresses need no reading: their entries are relocated, or are words of the data. They are read all the
//! same to tell them from other data that holds addresses of code.

use std::collections::HashSet;

use hodo_isa::code::Reference;

use crate::image::{Image, Text};
use crate::pieces::Piece;
use crate::targets::Targets;

/// No table of distances has more entries than this.
const ENTRIES: usize = 4096;
/// This many words of tables are looked at for each byte of a piece. Compilers' code takes less than one.
const WORDS: usize = 64;

/// What tables lead to.
#[derive(Default)]
pub(crate) struct Tabled {
    /// The doubtful ones among the targets.
    pub doubtful: HashSet<u64>,
    /// Pieces that a table of theirs may lead out of, and where to.
    pub leave: Vec<(usize, u64)>,
}

/// Marks what the tables lead to. `bases` are the data addresses that code forms, with the piece that does.
pub(crate) fn mark(
    image: &Image<'_>,
    pieces: &[Piece],
    mut bases: Vec<(u64, usize)>,
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
        // What begins at the next address is most likely another thing. A table could go on there all the same, as long
        // as its entries lead into the function that uses it.
        let next = groups.peek().map_or(u64::MAX, |next| next[0].0);
        let mut at = base;
        // Where the image can only be where it is, the entries may be addresses.
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
            // What is no code, or within an instruction wherever they begin, is no entry: these are other data.
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

/// The places of the words of the tables of addresses that begin at `bases`.
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

/// Marks what tables lead to whose distances are from a place in the piece itself. Which place belongs to which table
/// is not known: all are taken for possible, and marks that are wrong do no harm. Where there are too many, all
/// instructions are.
pub(crate) fn mark_distances(image: &Image<'_>, targets: &Targets, piece: &Piece, text: &Text<'_>) {
    if image.isa.has_short_distances() {
        let code = text.slice(piece.start, piece.end);
        let insns = image.isa.sweep(code, piece.start);
        insns.for_each(|insn| targets.mark(insn.addr));
        return;
    }
    let range = piece.start..piece.end;
    let mut places = Vec::new();
    let mut tables = Vec::new();
    let mut words = vec![0];
    let code = || {
        let code = text.slice(piece.start, piece.end);
        image.isa.sweep(code, piece.start)
    };
    for insn in code() {
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
    let tables = tables.iter().flat_map(|table| {
        let words = words.iter();
        words.map(move |&word| table.wrapping_add_signed(i64::from(word)))
    });
    let mut left = (range.end - range.start) as usize * WORDS;
    for table in tables {
        let data = image.data_at(table);
        let entries = data.map_or(&[][..], |data| data.slice(table, data.end()));
        let entries = entries.as_chunks::<4>().0.iter().take(ENTRIES);
        let mut looked = 1;
        for &place in &places {
            looked += 1;
            for entry in entries.clone() {
                let distance = i64::from(i32::from_le_bytes(*entry));
                let target = place.wrapping_add_signed(distance);
                if !range.contains(&target) {
                    break;
                }
                targets.mark(target);
                looked += 1;
            }
        }
        if looked > left {
            code().for_each(|insn| targets.mark(insn.addr));
            return;
        }
        left -= looked;
    }
}
