//! Cuts the code wherever something is known to begin.

use hodo_isa::code::{Flow, InstructionSet};
use hodo_symbols::Symbols;

use crate::image::{Image, Text};

/// A stretch of code that begins where something is known to begin.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub start: u64,
    /// Where the code ends, as far as known.
    pub end: u64,
    /// Where the next piece begins.
    pub limit: u64,
    /// Index of the function that begins here.
    pub function: Option<usize>,
}

/// All pieces, sorted, and by function the index of its piece.
pub(crate) fn cut(image: &Image<'_>, symbols: &Symbols) -> (Vec<Piece>, Vec<usize>) {
    let functions = symbols.functions.iter().enumerate();
    let mut starts: Vec<(u64, u64, Option<usize>)> = functions
        .map(|(index, f)| (f.addr, f.size, Some(index)))
        .chain(symbols.fragments.iter().map(|f| (f.addr, f.size, None)))
        .chain(image.text.iter().map(|text| (text.addr, 0, None)))
        .collect();
    starts
        .sort_by_key(|&(addr, size, function)| (addr, function.is_none(), std::cmp::Reverse(size)));
    starts.dedup_by_key(|(addr, ..)| *addr);
    let mut pieces = Vec::with_capacity(starts.len());
    let mut heads = vec![usize::MAX; symbols.functions.len()];
    for (at, &(start, size, function)) in starts.iter().enumerate() {
        let Some(text) = image.text_at(start).filter(|text| !text.plt) else {
            continue;
        };
        let next = starts.get(at + 1).map_or(u64::MAX, |next| next.0);
        let limit = text.end().min(next);
        let end = match size {
            0 => limit.min(text.code_end()),
            size => start.saturating_add(size).min(limit),
        };
        if let Some(function) = function {
            heads[function] = pieces.len();
        }
        // Code without a symbol may branch anywhere. If a function runs into it, it is a part of the function.
        let mut end = end;
        let mut covered = end == limit || is_padding(image.isa, text, end, limit);
        if !covered && function.is_some() && runs_on(image.isa, text, start, end) {
            end = limit.min(text.code_end());
            covered = true;
        }
        pieces.push(Piece {
            start,
            end,
            limit: if covered { limit } else { end },
            function,
        });
        if !covered {
            pieces.push(Piece {
                start: end,
                end: limit,
                limit,
                function: None,
            });
        }
    }
    (pieces, heads)
}

/// Returns whether control reaches the end of a range through its last instruction.
fn runs_on(isa: &'static dyn InstructionSet, text: &Text<'_>, start: u64, end: u64) -> bool {
    let last = isa.sweep(text.slice(start, end), start).last();
    last.is_some_and(|insn| matches!(insn.flow, Flow::Next | Flow::Branch(_)))
}

/// Returns whether a range contains nothing but padding.
pub(crate) fn is_padding(
    isa: &'static dyn InstructionSet,
    text: &Text<'_>,
    start: u64,
    end: u64,
) -> bool {
    let bytes = text.slice(start, end);
    bytes.iter().all(|&b| b == 0) || isa.sweep(bytes, start).all(|insn| insn.padding)
}

/// Returns the piece that contains an address.
pub(crate) fn find(pieces: &[Piece], addr: u64) -> Option<usize> {
    let at = pieces.partition_point(|piece| piece.start <= addr);
    let at = at.checked_sub(1)?;
    (addr < pieces[at].limit).then_some(at)
}

/// Returns the piece that begins at an address.
pub(crate) fn starting(pieces: &[Piece], addr: u64) -> Option<usize> {
    pieces.binary_search_by_key(&addr, |piece| piece.start).ok()
}
