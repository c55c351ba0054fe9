//! General registers, and what functions do to them.
//!
//! Compilers know of functions in the same file which registers they overwrite, and keep values in the others over calls, whatever the
//! convention says; some also pass arguments in more registers than the convention has. So the code itself is asked: of a function of
//! this image, what it may read before it overwrites it, and what it overwrites. The convention holds for what is called through the
//! PLT or through a register.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use hodo_arch::code::{Convention, Flow, How, Step};

use super::{Summaries, Summary, grow, solve};
use crate::jumps::Jumps;
use crate::pieces::{self, Piece};
use crate::planner::Survey;

/// Where control goes from a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// The start of a piece.
    Piece(usize),
    /// The middle of one.
    Inside(usize),
    /// A function that is not in this image, or one that is called through a register.
    Outside,
    /// Nobody knows.
    Unknown,
}

/// Where a direct call or jump goes.
pub(super) fn to(survey: &Survey<'_>, addr: u64) -> To {
    match survey.image.text_at(addr) {
        None => To::Unknown,
        Some(text) if text.plt => To::Outside,
        Some(_) => match pieces::find(&survey.pieces, addr) {
            Some(piece) if survey.pieces[piece].start == addr => To::Piece(piece),
            Some(piece) => To::Inside(piece),
            None => To::Unknown,
        },
    }
}

/// Reads the instructions of a piece, and appends them to those of others.
fn read(survey: &Survey<'_>, piece: &Piece, steps: &mut Vec<Step>) {
    let start = steps.len();
    if let Some(text) = survey.image.text_at(piece.start) {
        let code = text.slice(piece.start, piece.end);
        survey
            .image
            .isa
            .steps(code, piece.start)
            .for_each(|step| steps.push(step));
        survey.statics.see(&mut steps[start..], |_| {});
    }
}

/// Where a branch, jump or call leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goes {
    /// It leads nowhere by itself, or to somewhere outside of the piece that nobody asked for.
    On,
    /// To this instruction of the piece.
    Here(u32),
    /// To the middle of one.
    Amiss,
    /// To the start of this piece.
    Piece(u32),
    /// To the middle of another piece.
    Inside,
    /// To a function that is not in this image.
    Outside,
    /// Nobody knows.
    Unknown,
}

impl Goes {
    /// Where a branch of a piece leads, as far as it stays in the piece.
    pub fn within(piece: &Piece, steps: &[Step], to: u64) -> Self {
        if !(piece.start..piece.end).contains(&to) {
            return Self::On;
        }
        match steps.binary_search_by_key(&to, |step| step.addr) {
            Ok(index) => Self::Here(index as u32),
            Err(_) => Self::Amiss,
        }
    }
}

/// Tells of each instruction of a piece where it leads.
pub(super) fn goes(survey: &Survey<'_>, piece: &Piece, steps: &[Step], all: &mut Vec<Goes>) {
    let away = |addr: u64| match to(survey, addr) {
        To::Piece(piece) => Goes::Piece(piece as u32),
        To::Inside(_) => Goes::Inside,
        To::Outside => Goes::Outside,
        To::Unknown => Goes::Unknown,
    };
    all.extend(steps.iter().map(|step| match step.flow {
        Flow::Branch(addr) | Flow::Jump(addr) => match Goes::within(piece, steps, addr) {
            Goes::On => away(addr),
            here => here,
        },
        Flow::Call(addr) => away(addr),
        _ => Goes::On,
    }));
}

/// The instructions of all pieces and where they lead. They are read in parts, by several threads.
pub(crate) struct Decoded {
    parts: Vec<Part>,
    /// Pieces in each part but the last.
    share: usize,
}

/// The instructions of some pieces in a row.
#[derive(Default)]
struct Part {
    steps: Vec<Step>,
    goes: Vec<Goes>,
    /// Where those of each piece end.
    ends: Vec<usize>,
    owns: Vec<Own>,
}

impl Decoded {
    /// Those of a piece.
    pub fn of(&self, piece: usize) -> (&[Step], &[Goes]) {
        let part = &self.parts[piece / self.share];
        let at = piece % self.share;
        let start = at.checked_sub(1).map_or(0, |before| part.ends[before]);
        let range = start..part.ends[at];
        (&part.steps[range.clone()], &part.goes[range])
    }
}

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

fn own(survey: &Survey<'_>, piece: &Piece, steps: &[Step], convention: &Convention) -> Own {
    let mut own = Own::default();
    let mut dead = false;
    let range = piece.start..piece.end;
    let (mut jumps, mut unreached) = (false, false);
    for step in steps {
        if dead && !survey.targets.any.get(step.addr) {
            unreached |= !step.padding;
            continue;
        }
        dead = step.flow.is_end();
        jumps |= step.flow == Flow::IndirectJump;
        own.writes |= step.writes;
        let (to, addr) = match step.flow {
            Flow::Call(addr) => (to(survey, addr), addr),
            Flow::Jump(addr) | Flow::Branch(addr) if !range.contains(&addr) => {
                (to(survey, addr), addr)
            }
            Flow::IndirectCall => (To::Outside, 0),
            _ => continue,
        };
        match to {
            To::Piece(piece) => own.to.push(piece),
            To::Inside(piece) => own.inside.push((addr, piece)),
            // Those through a register and by another link register have conventions of their own.
            To::Outside if step.reads != survey.image.isa.state() => {
                own.writes |= convention.volatile;
            }
            To::Outside | To::Unknown => {}
        }
    }
    if jumps && !unreached {
        own.jumps = knows_jumps(survey, piece, steps);
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
fn knows_jumps(survey: &Survey<'_>, piece: &Piece, steps: &[Step]) -> bool {
    survey.image.text_at(piece.start).is_some_and(|text| {
        let jumps = Jumps::of(survey, piece, text, steps);
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

/// Tells for all pieces what calls of them do.
pub(super) fn summaries(survey: &Survey<'_>, convention: &Convention) -> Summaries {
    let pieces = &survey.pieces;
    let share = pieces.len().div_ceil(survey.threads).max(1);
    let mut parts = in_parts(pieces.len(), share, |range| {
        let mut part = Part::default();
        for piece in &pieces[range] {
            let start = part.steps.len();
            read(survey, piece, &mut part.steps);
            let steps = &part.steps[start..];
            goes(survey, piece, steps, &mut part.goes);
            part.owns.push(own(survey, piece, steps, convention));
            part.ends.push(part.steps.len());
        }
        part
    });
    let owns = parts
        .iter_mut()
        .flat_map(|part| std::mem::take(&mut part.owns));
    let mut owns: Vec<Own> = owns.collect();
    let decoded = Decoded { parts, share };
    let outside = outside(survey, &owns);
    for (&piece, places) in &outside {
        for &addr in places {
            match to(survey, addr) {
                To::Inside(other) => owns[piece].inside.push((addr, other)),
                // What it overwrites may be another function's matter.
                To::Piece(other) => owns[piece].inside.push((addr, other)),
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
fn used(survey: &Survey<'_>, found: &mut Summaries, owns: &[Own], order: &[usize]) {
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
        let code = found.decoded.of(index);
        let used = Behind::Nothing;
        find(survey, found, piece, used, code, |_| false, &mut live);
        let steps = code.0;
        let starts = places.get(&index).into_iter().flatten();
        let inside: Vec<(u64, u32)> = starts
            .map(|&addr| {
                let at = steps.binary_search_by_key(&addr, |step| step.addr);
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

/// Runs something on shares of so many pieces, each in a thread.
fn in_parts<T: Send>(
    pieces: usize,
    share: usize,
    run: impl Fn(Range<usize>) -> T + Sync,
) -> Vec<T> {
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let run = &run;
        let workers: Vec<_> = (0..pieces)
            .step_by(share)
            .map(|start| scope.spawn(move || run(start..pieces.min(start + share))))
            .collect();
        for worker in workers {
            let part = worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all.push(part);
        }
    });
    all
}

/// All pieces, each behind those that it calls, but for circles.
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
pub(super) enum Behind {
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
    summaries: &Summaries,
    piece: &Piece,
    behind: Behind,
    (steps, goes): (&[Step], &[Goes]),
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
        true => (0..steps.len())
            .filter(|&at| survey.targets.foreign.get(steps[at].addr))
            .collect(),
        false => Vec::new(),
    };
    let returned = match behind {
        Behind::Nothing => 0,
        Behind::Callers => convention.returned(clobbers),
        Behind::These(registers) => registers,
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
    let leaving = |index: usize, flow: Flow, next: u32| match flow {
        Flow::Call(addr) => match goes[index] {
            Goes::Piece(callee) => {
                let Summary {
                    entry, clobbers, ..
                } = summaries.pieces[callee as usize];
                entry | !convention.volatile | next & !clobbers
            }
            Goes::Inside => inside(addr) | !convention.volatile | next,
            Goes::Outside => convention.entry,
            _ => all,
        },
        Flow::IndirectCall => convention.entry,
        Flow::Jump(addr) | Flow::Branch(addr) => match goes[index] {
            Goes::Piece(callee) => jumped(callee as usize),
            Goes::Inside => inside(addr) | returned,
            Goes::Outside => convention.entry,
            _ => all,
        },
        Flow::Return { how: How::Plain } => returned,
        // What it leaves as it is, those who call it so see from its code.
        Flow::Return { .. } if behind == Behind::Nothing => 0,
        Flow::Fault => convention.entry,
        // Here or in another function.
        Flow::IndirectJump if jumps => {
            let there = outside.iter().map(|&addr| inside(addr) | returned);
            there.fold(convention.entry, |all, of| all | of)
        }
        _ => all,
    };
    let end = next(survey, piece).map_or(all, jumped);
    let ways = (|index: usize, _: u64| goes[index], leaving);
    solve(steps, is_data, (all, end), ways, &led_to, live);
    // What handles an exception may come from anywhere, and use what functions keep.
    let pads = &survey.symbols.landing_pads;
    let pad = pads.partition_point(|&pad| pad < piece.start);
    if pads.get(pad).is_some_and(|&pad| pad < piece.end) {
        live.iter_mut()
            .for_each(|live| *live |= !convention.volatile);
    }
}
