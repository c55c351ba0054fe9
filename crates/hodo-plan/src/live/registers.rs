//! What functions do with general registers.
//!
//! Compilers know which registers the functions of the same file overwrite, and keep values in the others across calls,
//! whatever the convention says. Some also pass arguments in more registers than the convention has. So the code itself
//! is inspected: what a function of this image may read before it overwrites it, and what it overwrites before it
//! returns. (Callers written by hand know what a function keeps that calls `abort` otherwise, such as
//! `__arm_za_disable` of the ABI for SME.) The convention holds for what is called through the PLT or through a
//! register.

use std::collections::HashMap;

use hodo_isa::code::Convention;
use hodo_isa::liveness::Passes;

use super::blocks::{Around, Blocks};
use super::{Summaries, Summary, grow, solve};
use crate::jumps::Jumps;
use crate::nodes::{Code, Nodes, To, Way, to};
use crate::pieces::{self, Piece};
use crate::survey::Survey;

/// What one piece does by itself.
#[derive(Default)]
struct Own {
    writes: u32,
    /// Pieces to whose starts it leads, and pieces that it calls.
    to: Vec<usize>,
    /// Those of them from which it never comes back to its caller.
    lost: Vec<usize>,
    /// Places in the middle of pieces to which it leads.
    inside: Vec<(u64, usize)>,
    /// Whether the targets of its jumps through registers are known.
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
    let lost_from = code.ends_in_call();
    let returning = lost_from.map(|from| returning(code, from));
    // Pieces from which it comes back.
    let mut back = Vec::new();
    for (at, node) in code.nodes.iter().enumerate() {
        if dead && !survey.targets.any.get(piece.start + node.at()) {
            unreached |= !node.is_padding();
            continue;
        }
        let returns = returning.as_ref().is_none_or(|returning| returning[at]);
        if returns {
            own.writes |= node.writes;
        }
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
            To::Piece(piece) => {
                own.to.push(piece);
                if returns {
                    back.push(piece);
                }
            }
            To::Inside(addr) => own.add_inside(survey, addr),
            // Calls through a register or with another link register have their own conventions.
            To::Outside if returns && node.reads != survey.image.isa.state() => {
                own.writes |= convention.volatile;
            }
            To::Outside | To::Unknown => {}
        }
    }
    if jumps && !unreached {
        own.jumps = knows_jumps(survey, piece, code);
    }
    if !dead {
        let next = next(survey, piece);
        own.to.extend(next);
        back.extend(next.filter(|_| lost_from.is_none()));
    }
    own.to.sort_unstable();
    own.to.dedup();
    if lost_from.is_some() {
        own.lost
            .extend(own.to.iter().filter(|to| !back.contains(to)));
    }
    own.inside.sort_unstable();
    own.inside.dedup();
    own
}

/// For each instruction, whether the function may return from there on, if it does not from this one on: what is called
/// there does not come back.
fn returning(code: Code<'_>, lost_from: usize) -> Vec<bool> {
    let mut found = vec![false; code.nodes.len() + 1];
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for (at, node) in code.nodes[..lost_from].iter().enumerate().rev() {
            let next = found[at + 1];
            let returns = match code.way(node) {
                Way::Next | Way::Call(_) | Way::IndirectCall => next,
                Way::Branch(to) => next || found[to],
                Way::Jump(to) => found[to],
                Way::Fault => false,
                _ => true,
            };
            changed |= returns != found[at];
            found[at] = returns;
        }
    }
    found
}

/// Returns whether the targets of a piece's jumps through registers are known.
fn knows_jumps(survey: &Survey<'_>, piece: &Piece, code: Code<'_>) -> bool {
    survey.image.text_at(piece.start).is_some_and(|text| {
        let jumps = Jumps::of(survey, piece, text, &(piece, code));
        !(jumps.computed || jumps.distances)
    })
}

/// For each piece, the targets of its tables in other pieces, and the labels in the data that may lead to parts of
/// functions that lie apart.
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

/// Returns the piece to which control continues at the end of a piece.
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
                // What a whole piece overwrites may belong to another function.
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
            let Own { to, lost, .. } = &owns[index];
            let callees = to.iter().filter(|to| !lost.contains(to));
            let callees = callees.map(|&to| found[to].clobbers);
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
        cut: Cut::default(),
    };
    found.cut = used(survey, &mut found, &owns, &order);
    found
}

/// Finds what calls of all pieces may use. Begins with nothing and ends when nothing changes; intermediate results are
/// incomplete.
fn used(survey: &Survey<'_>, found: &mut Summaries<'_>, owns: &[Own], order: &[usize]) -> Cut {
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
    let mut cut = Cut::of(survey, found, &places);
    let mut passes = Passes::default();
    let mut waits = vec![true; owns.len()];
    let mut left = owns.len();
    while left != 0 {
        // In this order, the callees of a piece are mostly known before it is inspected.
        for &index in order {
            if !std::mem::replace(&mut waits[index], false) {
                continue;
            }
            left -= 1;
            if !cut.look(survey, found, index, &mut passes) {
                continue;
            }
            for &caller in &callers[index] {
                left += usize::from(!std::mem::replace(&mut waits[caller as usize], true));
            }
        }
    }
    cut
}

/// All pieces, cut into runs, and what is known so far to be used at the start of each run if nothing is used after the
/// pieces.
#[derive(Default)]
pub(super) struct Cut {
    blocks: Blocks,
    /// By piece, where its runs begin, and one more for the end.
    starts: Vec<usize>,
    live: Vec<u32>,
    /// For each piece, the runs to which its jumps through registers lead.
    led_to: HashMap<usize, Vec<usize>>,
    /// For each piece, the places in it to which others lead, and the runs there; none if no instruction begins there.
    places: HashMap<usize, Vec<(u64, Option<usize>)>>,
}

impl Cut {
    fn of(survey: &Survey<'_>, found: &Summaries<'_>, places: &HashMap<usize, Vec<u64>>) -> Self {
        let mut blocks = Blocks::default();
        let mut starts = Vec::with_capacity(survey.pieces.len() + 1);
        let mut led_to = HashMap::new();
        let mut found_places = HashMap::new();
        starts.push(0);
        for (index, piece) in survey.pieces.iter().enumerate() {
            let code = found.of(index);
            let led = led_to_by(survey, piece, code, found.pieces[index].jumps);
            let entered: Vec<(u64, Option<usize>)> = (places.get(&index).into_iter().flatten())
                .map(|&addr| (addr, code.find(addr - piece.start)))
                .collect();
            let mut cuts = led.clone();
            cuts.extend(entered.iter().filter_map(|&(_, at)| at));
            blocks.cut(code, &cuts);
            if !led.is_empty() {
                led_to.insert(index, led.iter().map(|&at| blocks.number(at)).collect());
            }
            if !entered.is_empty() {
                let entered = entered.into_iter();
                let entered = entered.map(|(addr, at)| (addr, at.map(|at| blocks.number(at))));
                found_places.insert(index, entered.collect());
            }
            starts.push(blocks.len());
        }
        Self {
            live: vec![0; blocks.len()],
            blocks,
            starts,
            led_to,
            places: found_places,
        }
    }

    fn led_to(&self, index: usize) -> &[usize] {
        self.led_to.get(&index).map_or(&[], Vec::as_slice)
    }

    /// Inspects a piece again. Returns whether it uses more than was known.
    fn look(
        &mut self,
        survey: &Survey<'_>,
        found: &mut Summaries<'_>,
        index: usize,
        passes: &mut Passes,
    ) -> bool {
        let all = survey.image.isa.state();
        let Some(convention) = survey.image.isa.convention() else {
            return false;
        };
        let piece = &survey.pieces[index];
        let code = found.of(index);
        let range = self.starts[index]..self.starts[index + 1];
        let live = &mut self.live[range.clone()];
        let led_to = self.led_to.get(&index).map_or(&[][..], Vec::as_slice);
        let entry = {
            let surroundings = Surroundings {
                survey,
                summaries: found,
                convention,
                own: Some(index),
                after: UsedAfter::Nothing,
            };
            let around = surroundings.around(piece, led_to);
            self.blocks.of(range).solve(code, &around, live, passes);
            live.first().copied().unwrap_or(around.end)
        };
        let handled = handled(survey, piece, &convention);
        let mut changed = grow(&mut found.pieces[index].entry, entry | handled);
        for &(addr, run) in self.places.get(&index).into_iter().flatten() {
            let there = run.map_or(all, |run| live[run] | handled);
            let known = found.inside.get_mut(&addr);
            changed |= known.is_some_and(|known| grow(known, there));
        }
        changed
    }
}

/// Calls `run` for each part of the code, in as many threads as there are parts. It gets the number of the part's first
/// piece.
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

/// All pieces, each after those that it calls, except in circles.
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

/// What is used after a function has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsedAfter {
    /// Nothing: the question is only what the function itself uses.
    Nothing,
    /// What its callers may have left in registers.
    Callers,
    /// These.
    These(u32),
}

/// Returns what is used from the start of each instruction of a piece on.
pub(super) fn find(
    survey: &Survey<'_>,
    summaries: &Summaries<'_>,
    piece: &Piece,
    after: UsedAfter,
    code: Code<'_>,
    is_data: impl Fn(usize) -> bool,
    live: &mut Vec<u32>,
) {
    let Some(convention) = survey.image.isa.convention() else {
        return;
    };
    let own = pieces::find(&survey.pieces, piece.start);
    let jumps = own.is_some_and(|own| summaries.pieces[own].jumps);
    let surroundings = Surroundings {
        survey,
        summaries,
        convention,
        own,
        after,
    };
    let led_to = led_to_by(survey, piece, code, jumps);
    let around = surroundings.around(piece, &led_to);
    solve(code, is_data, &around, live);
    let handled = handled(survey, piece, &convention);
    live.iter_mut().for_each(|live| *live |= handled);
}

/// The same for instructions of a piece as they were read: the first ones up to this one, and perhaps some more.
pub(super) fn find_in(
    survey: &Survey<'_>,
    summaries: &Summaries<'_>,
    (index, after): (usize, UsedAfter),
    until: usize,
    live: &mut Vec<u32>,
) {
    let Some(convention) = survey.image.isa.convention() else {
        return;
    };
    let piece = &survey.pieces[index];
    let code = summaries.of(index);
    let cut = &summaries.cut;
    let surroundings = Surroundings {
        survey,
        summaries,
        convention,
        own: Some(index),
        after,
    };
    let around = surroundings.around(piece, cut.led_to(index));
    let range = cut.starts[index]..cut.starts[index + 1];
    // What is used if nothing is used afterward is used in any case.
    let mut starts = cut.live[range.clone()].to_vec();
    let runs = cut.blocks.of(range);
    runs.solve(code, &around, &mut starts, &mut Passes::default());
    runs.spread(code, &around, &starts, until, live);
    let handled = handled(survey, piece, &convention);
    live.iter_mut().for_each(|live| *live |= handled);
}

/// Returns the instructions of a piece to which its jumps through registers may lead, if these are known.
fn led_to_by(survey: &Survey<'_>, piece: &Piece, code: Code<'_>, jumps: bool) -> Vec<usize> {
    if !jumps {
        return Vec::new();
    }
    let places = survey.targets.foreign.each(piece.start..piece.end);
    places
        .filter_map(|addr| code.find(addr - piece.start))
        .collect()
}

/// Returns what is used everywhere in a piece that handles exceptions: its landing pads may be reached from anywhere,
/// and use registers that functions preserve.
fn handled(survey: &Survey<'_>, piece: &Piece, convention: &Convention) -> u32 {
    let pads = &survey.symbols.landing_pads;
    let pad = pads.partition_point(|&pad| pad < piece.start);
    match pads.get(pad) {
        Some(&pad) if pad < piece.end => !convention.volatile,
        _ => 0,
    }
}

/// What is known about the code around a piece.
struct Surroundings<'a> {
    survey: &'a Survey<'a>,
    summaries: &'a Summaries<'a>,
    convention: Convention,
    /// The number of the piece.
    own: Option<usize>,
    after: UsedAfter,
}

impl<'a> Surroundings<'a> {
    fn around(
        &'a self,
        piece: &Piece,
        led_to: &'a [usize],
    ) -> Around<'a, impl Fn(Way, u32) -> u32> {
        let Self {
            survey,
            summaries,
            convention,
            own,
            after,
        } = *self;
        let all = survey.image.isa.state();
        let own_summary = own.map(|own| &summaries.pieces[own]);
        let jumps = own_summary.is_some_and(|own| own.jumps);
        let returned = match after {
            UsedAfter::Nothing => 0,
            UsedAfter::Callers => own_summary.map_or_else(
                || convention.returned(0),
                |own| own.returned(&convention, all),
            ),
            UsedAfter::These(registers) => registers,
        };
        // The callee returns to where this function would return.
        let jumped = move |callee: usize| {
            let Summary {
                entry, clobbers, ..
            } = summaries.pieces[callee];
            entry | returned & !clobbers
        };
        let outside = own.and_then(|own| summaries.outside.get(&own));
        let outside = outside.map_or(&[][..], Vec::as_slice);
        let inside = move |addr: u64| summaries.inside.get(&addr).copied().unwrap_or(all);
        let leaving = move |way: Way, next: u32| match way {
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
            // The callers see from its code which registers it preserves.
            Way::OtherReturn if after == UsedAfter::Nothing => 0,
            Way::Fault => convention.entry,
            // A place here or in another function.
            Way::IndirectJump if jumps => {
                let there = outside.iter().map(|&addr| inside(addr) | returned);
                there.fold(convention.entry, |all, of| all | of)
            }
            _ => all,
        };
        Around {
            leaving,
            all,
            end: next(survey, piece).map_or(all, jumped),
            led_to,
        }
    }
}
