//! What functions do with general registers.
//!
//! Compilers know of functions in the same file which registers they overwrite, and keep values in the others over
//! calls, whatever the convention says; some also pass arguments in more registers than the convention has. So the code
//! itself is asked: of a function of this image, what it may read before it overwrites it, and what it overwrites. The
//! convention holds for what is called through the PLT or through a register.

use std::collections::{HashMap, VecDeque};

use hodo_isa::code::Convention;

use super::{Summaries, Summary, grow, solve};
use crate::jumps::Jumps;
use crate::nodes::{Code, Nodes, To, Way, to};
use crate::pieces::{self, Piece};
use crate::survey::Survey;

/// What one piece does by itself.
#[derive(Default)]
struct Own {
    writes: u32,
    /// Pieces whose starts it leads to, and those that it calls.
    to: Vec<usize>,
    /// Places in the middle of pieces that it leads to.
    inside: Vec<(u64, usize)>,
    /// Where its jumps through registers go is known.
    jumps: bool,
}

impl Own {
    fn add_inside(&mut self, survey: &Survey<'_>, addr: u64) {
        let piece = pieces::find(&survey.pieces, addr);
        self.inside.extend(piece.map(|piece| (addr, piece)));
    }
}

fn own(survey: &Survey<'_>, piece: &Piece, code: Code<'_>, convention: &Convention) -> Own {
    let mut own = Own::default();
    let mut dead = false;
    let (mut jumps, mut unreached) = (false, false);
    for node in code.nodes {
        if dead && !survey.targets.any.get(piece.start + node.at()) {
            unreached |= !node.is_padding();
            continue;
        }
        own.writes |= node.writes;
        if node.goes_on() {
            dead = false;
            continue;
        }
        dead = node.is_end();
        jumps |= node.is_indirect_jump();
        let to = match code.way(node) {
            Way::Call(to) | Way::JumpAway(to) | Way::BranchAway(to) => to,
            Way::IndirectCall => To::Outside,
            _ => continue,
        };
        match to {
            To::Piece(piece) => own.to.push(piece),
            To::Inside(addr) => own.add_inside(survey, addr),
            // Those through a register and by another link register have conventions of their own.
            To::Outside if node.reads != survey.image.isa.state() => {
                own.writes |= convention.volatile;
            }
            To::Outside | To::Unknown => {}
        }
    }
    if jumps && !unreached {
        own.jumps = knows_jumps(survey, piece, code);
    }
    if !dead {
        own.to.extend(next(survey, piece));
    }
    own.to.sort_unstable();
    own.to.dedup();
    own.inside.sort_unstable();
    own.inside.dedup();
    own
}

/// Whether it is known where the jumps of a piece go through registers.
fn knows_jumps(survey: &Survey<'_>, piece: &Piece, code: Code<'_>) -> bool {
    survey.image.text_at(piece.start).is_some_and(|text| {
        let jumps = Jumps::of(survey, piece, text, &(piece, code));
        !(jumps.computed || jumps.distances)
    })
}

/// Where tables lead out of pieces, and where labels in the data may, to parts of functions that lie apart: by piece.
fn outside(survey: &Survey<'_>, owns: &[Own]) -> HashMap<usize, Vec<u64>> {
    let mut found: HashMap<usize, Vec<u64>> = HashMap::new();
    for &(piece, addr) in &survey.tabled.leave {
        found.entry(piece).or_default().push(addr);
    }
    for &addr in &survey.taken_parts {
        let Some(part) = pieces::find(&survey.pieces, addr) else {
            continue;
        };
        // A part and its function jump to each other.
        let leads = |own: &Own, to: usize| {
            own.to.contains(&to) || own.inside.iter().any(|&(_, piece)| piece == to)
        };
        for (piece, own) in owns.iter().enumerate() {
            if own.jumps && (leads(own, part) || leads(&owns[part], piece)) {
                found.entry(piece).or_default().push(addr);
            }
        }
    }
    found.retain(|&piece, _| owns[piece].jumps);
    for places in found.values_mut() {
        places.sort_unstable();
        places.dedup();
    }
    found
}

/// The piece that control goes on to at the end of one.
fn next(survey: &Survey<'_>, piece: &Piece) -> Option<usize> {
    pieces::starting(&survey.pieces, piece.end)
}

/// Finds out what calls of each piece do.
pub(super) fn summaries<'s>(survey: &'s Survey<'_>, convention: &Convention) -> Summaries<'s> {
    let decoded = &survey.swept.decoded[..];
    let parts = in_parts(decoded, |first, part| {
        let pieces = survey.pieces[first..].iter().zip(0..part.count());
        let owns = pieces.map(|(piece, at)| own(survey, piece, part.of(at), convention));
        owns.collect::<Vec<_>>()
    });
    let mut owns: Vec<Own> = parts.into_iter().flatten().collect();
    let outside = outside(survey, &owns);
    for (&piece, places) in &outside {
        for &addr in places {
            match to(&survey.image, &survey.pieces, addr) {
                // What a whole piece overwrites may be another function's matter.
                To::Inside(_) | To::Piece(_) => owns[piece].add_inside(survey, addr),
                To::Outside | To::Unknown => {}
            }
        }
    }
    let mut found: Vec<Summary> = owns
        .iter()
        .map(|own| Summary {
            entry: 0,
            jumps: own.jumps,
            clobbers: own.writes,
        })
        .collect();
    let order = callees_first(&owns);
    loop {
        let mut changed = false;
        for &index in &order {
            let callees = owns[index].to.iter().map(|&to| found[to].clobbers);
            let clobbers = callees.fold(found[index].clobbers, |all, of| all | of);
            changed |= clobbers != found[index].clobbers;
            found[index].clobbers = clobbers;
        }
        if !changed {
            break;
        }
    }
    let mut found = Summaries {
        pieces: found,
        decoded,
        inside: HashMap::new(),
        outside,
    };
    used(survey, &mut found, &owns, &order);
    found
}

/// Finds what calls of all pieces may use: from nothing on, until nothing changes any more. Before that, it is not all.
fn used(survey: &Survey<'_>, found: &mut Summaries<'_>, owns: &[Own], order: &[usize]) {
    let pieces = &survey.pieces;
    let mut callers: Vec<Vec<u32>> = vec![Vec::new(); owns.len()];
    let mut places: HashMap<usize, Vec<u64>> = HashMap::new();
    for (index, own) in owns.iter().enumerate() {
        let inside = own.inside.iter();
        for &to in own.to.iter().chain(inside.clone().map(|(_, piece)| piece)) {
            callers[to].push(index as u32);
        }
        for &(addr, piece) in inside {
            places.entry(piece).or_default().push(addr);
            found.inside.insert(addr, 0);
        }
    }
    let mut live = Vec::new();
    let mut open: VecDeque<usize> = order.iter().copied().collect();
    let mut waits = vec![true; owns.len()];
    while let Some(index) = open.pop_front() {
        waits[index] = false;
        let piece = &pieces[index];
        let code = found.of(index);
        let used = UsedAfter::Nothing;
        find(survey, found, piece, used, code, |_| false, &mut live);
        let starts = places.get(&index).into_iter().flatten();
        let inside: Vec<(u64, u32)> = starts
            .map(|&addr| {
                let at = code.find(addr - piece.start);
                (addr, at.map_or(survey.image.isa.state(), |at| live[at]))
            })
            .collect();
        let mut changed = grow(&mut found.pieces[index].entry, live[0]);
        for (addr, there) in inside {
            changed |= found
                .inside
                .get_mut(&addr)
                .is_some_and(|known| grow(known, there));
        }
        if !changed {
            continue;
        }
        for &caller in &callers[index] {
            if !std::mem::replace(&mut waits[caller as usize], true) {
                open.push_back(caller as usize);
            }
        }
    }
}

/// Runs something on each part of the code, of which it gets the number of the first piece; in as many threads.
fn in_parts<'s, T: Send>(parts: &'s [Nodes], run: impl Fn(usize, &'s Nodes) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let run = &run;
        let mut first = 0;
        let workers: Vec<_> = parts
            .iter()
            .map(|part| {
                let start = first;
                first += part.count();
                scope.spawn(move || run(start, part))
            })
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined
            .map(|part| part.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// All pieces, each after those that it calls, but for circles.
fn callees_first(owns: &[Own]) -> Vec<usize> {
    let mut order = Vec::with_capacity(owns.len());
    let mut seen = vec![false; owns.len()];
    let mut open: Vec<(usize, usize)> = Vec::new();
    for root in 0..owns.len() {
        if std::mem::replace(&mut seen[root], true) {
            continue;
        }
        open.push((root, 0));
        while let Some((index, next)) = open.last_mut() {
            if let Some(&to) = owns[*index].to.get(*next) {
                *next += 1;
                if !std::mem::replace(&mut seen[to], true) {
                    open.push((to, 0));
                }
            } else {
                order.push(*index);
                open.pop();
            }
        }
    }
    order
}

/// What is of use when a function has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsedAfter {
    /// Nothing: it is only asked what the function uses.
    Nothing,
    /// What its callers may have left in registers.
    Callers,
    /// These.
    These(u32),
}

/// What is used from the start of each instruction of a piece on.
pub(super) fn find(
    survey: &Survey<'_>,
    summaries: &Summaries<'_>,
    piece: &Piece,
    after: UsedAfter,
    code: Code<'_>,
    is_data: impl Fn(usize) -> bool,
    live: &mut Vec<u32>,
) {
    let isa = survey.image.isa;
    let (all, Some(convention)) = (isa.state(), isa.convention()) else {
        return;
    };
    let own = pieces::find(&survey.pieces, piece.start);
    let (clobbers, jumps) = own.map_or((0, false), |own| {
        let Summary {
            clobbers, jumps, ..
        } = summaries.pieces[own];
        (clobbers, jumps)
    });
    let led_to: Vec<usize> = match jumps {
        true => (code.nodes.iter().enumerate())
            .filter(|(_, node)| survey.targets.foreign.get(piece.start + node.at()))
            .map(|(at, _)| at)
            .collect(),
        false => Vec::new(),
    };
    let returned = match after {
        UsedAfter::Nothing => 0,
        UsedAfter::Callers => convention.returned(clobbers),
        UsedAfter::These(registers) => registers,
    };
    // It returns to where this function would.
    let jumped = |callee: usize| {
        let Summary {
            entry, clobbers, ..
        } = summaries.pieces[callee];
        entry | returned & !clobbers
    };
    let outside = own.and_then(|own| summaries.outside.get(&own));
    let outside = outside.map_or(&[][..], Vec::as_slice);
    let inside = |addr: u64| summaries.inside.get(&addr).copied().unwrap_or(all);
    let leaving = |way: Way, next: u32| match way {
        Way::Call(To::Piece(callee)) => {
            let Summary {
                entry, clobbers, ..
            } = summaries.pieces[callee];
            entry | !convention.volatile | next & !clobbers
        }
        Way::Call(To::Inside(addr)) => inside(addr) | !convention.volatile | next,
        Way::Call(To::Outside) | Way::IndirectCall => convention.entry,
        Way::JumpAway(to) | Way::BranchAway(to) => match to {
            To::Piece(callee) => jumped(callee),
            To::Inside(addr) => inside(addr) | returned,
            To::Outside => convention.entry,
            To::Unknown => all,
        },
        Way::Return => returned,
        // What it leaves as it is, those who call it so see from its code.
        Way::OtherReturn if after == UsedAfter::Nothing => 0,
        Way::Fault => convention.entry,
        // Here or in another function.
        Way::IndirectJump if jumps => {
            let there = outside.iter().map(|&addr| inside(addr) | returned);
            there.fold(convention.entry, |all, of| all | of)
        }
        _ => all,
    };
    let end = next(survey, piece).map_or(all, jumped);
    solve(code, is_data, (all, end), leaving, &led_to, live);
    // What handles an exception may come from anywhere, and use what functions keep.
    let pads = &survey.symbols.landing_pads;
    let pad = pads.partition_point(|&pad| pad < piece.start);
    if pads.get(pad).is_some_and(|&pad| pad < piece.end) {
        live.iter_mut()
            .for_each(|live| *live |= !convention.volatile);
    }
}
