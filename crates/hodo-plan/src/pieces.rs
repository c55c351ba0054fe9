//! The code cut up at all places where something is known to begin, and which of the pieces are functions.

use std::collections::{HashMap, HashSet};

use hodo_isa::code::{Flow, InstructionSet};
use hodo_symbols::{Nature, Symbols};

use crate::image::{Image, Text};
use crate::sweep::{Crossing, PieceFacts, Targets};

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
        // Code that no symbol covers may branch anywhere. If a function runs into it, it is a part of the function.
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

/// Does control reach the end of a range by its last instruction?
fn runs_on(isa: &'static dyn InstructionSet, text: &Text<'_>, start: u64, end: u64) -> bool {
    let last = isa.sweep(text.slice(start, end), start).last();
    last.is_some_and(|insn| matches!(insn.flow, Flow::Next | Flow::Branch(_)))
}

/// Is there nothing but padding in a range?
pub(crate) fn is_padding(
    isa: &'static dyn InstructionSet,
    text: &Text<'_>,
    start: u64,
    end: u64,
) -> bool {
    let bytes = text.slice(start, end);
    bytes.iter().all(|&b| b == 0) || isa.sweep(bytes, start).all(|insn| insn.padding)
}

/// The piece that holds an address.
pub(crate) fn find(pieces: &[Piece], addr: u64) -> Option<usize> {
    let at = pieces.partition_point(|piece| piece.start <= addr);
    let at = at.checked_sub(1)?;
    (addr < pieces[at].limit).then_some(at)
}

/// The piece that begins at an address.
pub(crate) fn starting(pieces: &[Piece], addr: u64) -> Option<usize> {
    pieces.binary_search_by_key(&addr, |piece| piece.start).ok()
}

/// Whether something is a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Function,
    /// A piece of a function that lies apart.
    Part,
    /// Nothing tells.
    Unclear,
}

/// What is known of jumps to one place.
#[derive(Default)]
struct Jumps {
    conditional: bool,
    from: Option<usize>,
    several: bool,
}

/// Decides for each piece whether it is a function. Compilers put rarely used parts of functions elsewhere: such a part
/// is not called, its address is not taken, only its function jumps there, and it may jump back into the middle.
/// `tabled` says whether a jump table leads to an address, `heads` which piece begins a function.
pub(crate) fn verdicts(
    symbols: &Symbols,
    (pieces, heads): (&[Piece], &[usize]),
    facts: &[PieceFacts],
    targets: &Targets,
    crossings: &[Crossing],
    tabled: impl Fn(u64) -> bool,
) -> Vec<Verdict> {
    let mut jumps: HashMap<u64, Jumps> = HashMap::new();
    let mut into_middle = HashSet::new();
    for crossing in crossings {
        if targets.doubtful.get(crossing.to) {
            let jumps = jumps.entry(crossing.to).or_default();
            jumps.conditional |= crossing.conditional;
            jumps.several |= jumps.from.is_some_and(|from| from != crossing.from);
            jumps.from = Some(crossing.from);
        }
        let from = pieces[crossing.from].start;
        if targets.doubtful.get(from)
            && let Some(to) = find(pieces, crossing.to).map(|to| &pieces[to])
            && to.function.is_some()
            && to.start != crossing.to
        {
            into_middle.insert(from);
        }
    }
    let verdict = |addr: u64, nature: Nature, head: usize| {
        if nature == Nature::Named || targets.called.get(addr) {
            return Verdict::Function;
        }
        if nature == Nature::Part {
            return Verdict::Part;
        }
        if targets.taken.get(addr) {
            return Verdict::Function;
        }
        if into_middle.contains(&addr) {
            return Verdict::Part;
        }
        match jumps.get(&addr) {
            Some(jumps) if jumps.conditional => Verdict::Part,
            Some(jumps) if jumps.several => Verdict::Function,
            // Functions that do not return are not called by a jump.
            Some(_) => match facts.get(head) {
                Some(facts) if !facts.leaves => Verdict::Part,
                // It has the stack of a function, and returns like one. Only what it may have been left below the stack
                // pointer tells it from one, and matters.
                Some(facts) if !facts.red_zone => Verdict::Function,
                _ => Verdict::Unclear,
            },
            None if tabled(addr) => Verdict::Part,
            None => Verdict::Function,
        }
    };
    let functions = symbols.functions.iter().zip(heads);
    functions
        .map(|(f, &head)| verdict(f.addr, f.nature, head))
        .collect()
}

/// Adds to the facts of each function those of its parts that lie apart.
pub(crate) fn join(
    pieces: &[Piece],
    verdicts: &[Verdict],
    facts: &mut [PieceFacts],
    crossings: &[Crossing],
) {
    let is_part = |piece: usize| match pieces[piece].function {
        Some(function) => verdicts[function] == Verdict::Part,
        None => true,
    };
    for crossing in crossings {
        let Some(to) = find(pieces, crossing.to) else {
            continue;
        };
        let (part, owner) = if is_part(to) {
            (to, crossing.from)
        } else if is_part(crossing.from) && pieces[to].start != crossing.to {
            (crossing.from, to)
        } else {
            continue;
        };
        let part = facts[part];
        let owner = &mut facts[owner];
        owner.pops |= part.pops;
        owner.other_link |= part.other_link;
        owner.reads_return |= part.reads_return;
        owner.writes_return |= part.writes_return;
    }
}
