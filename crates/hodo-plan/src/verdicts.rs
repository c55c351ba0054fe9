//! Decides which pieces of code are functions, and joins the facts about a function's parts.

use std::collections::{HashMap, HashSet};

use hodo_symbols::{Nature, Symbols};

use crate::pieces::{Piece, find};
use crate::sweep::{Crossing, PieceFacts};
use crate::targets::Targets;

/// Whether something is a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Function,
    /// A piece of a function that lies apart.
    Part,
    /// Undecided.
    Unclear,
}

/// What is known about jumps to one place.
#[derive(Default)]
struct Jumps {
    conditional: bool,
    from: Option<usize>,
    several: bool,
}

/// Decides for each piece whether it is a function. Compilers move rarely used parts of functions elsewhere: such a
/// part is not called, its address is not taken, only its function jumps there, and it may jump back into the middle.
/// `tabled` returns whether a jump table leads to an address, `heads` which pieces begin a function.
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
                // It has the stack of a function, and returns like one. The only difference that matters is what its
                // function may have left below the stack pointer.
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

/// Adds the facts about the parts of each function that lie apart to those of the function.
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
