//! General registers, and what functions do to them.
//!
//! Compilers know of functions in the same file which registers they overwrite, and keep values in the others over calls, whatever the
//! convention says; some also pass arguments in more registers than the convention has. So the code itself is asked: of a function of
//! this image, what it may read before it overwrites it, and what it overwrites. The convention holds for what is called through the
//! PLT or through a register.

use std::collections::VecDeque;
use std::ops::Range;

use hodo_arch::code::{Convention, Flow, How, Step};

use super::{Summary, solve};
use crate::pieces::{self, Piece};
use crate::planner::Survey;

/// Where control goes from a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    /// The start of a piece.
    Piece(usize),
    /// A function that is not in this image, or one that is called through a register.
    Outside,
    /// Nobody knows.
    Unknown,
}

/// Where a direct call or jump goes.
fn to(survey: &Survey<'_>, addr: u64) -> To {
    match survey.image.text_at(addr) {
        None => To::Unknown,
        Some(text) if text.plt => To::Outside,
        Some(_) => pieces::starting(&survey.pieces, addr).map_or(To::Unknown, To::Piece),
    }
}

/// Reads the instructions of a piece.
fn steps(survey: &Survey<'_>, piece: &Piece, steps: &mut Vec<Step>) {
    steps.clear();
    if let Some(text) = survey.image.text_at(piece.start) {
        let code = text.slice(piece.start, piece.end);
        steps.extend(survey.image.isa.steps(code, piece.start));
        survey.statics.see(steps, |_| {});
    }
}

/// What one piece does by itself.
#[derive(Default)]
struct Own {
    writes: u32,
    to: Vec<usize>,
}

fn own(survey: &Survey<'_>, piece: &Piece, steps: &[Step], convention: &Convention) -> Own {
    let mut own = Own::default();
    let mut dead = false;
    let range = piece.start..piece.end;
    for step in steps {
        if dead && !survey.targets.any.get(step.addr) {
            continue;
        }
        dead = step.flow.is_end();
        own.writes |= step.writes;
        let to = match step.flow {
            Flow::Call(addr) => to(survey, addr),
            Flow::Jump(addr) | Flow::Branch(addr) if !range.contains(&addr) => to(survey, addr),
            Flow::IndirectCall => To::Outside,
            _ => continue,
        };
        match to {
            To::Piece(piece) => own.to.push(piece),
            // Calls by another link register have conventions of their own.
            To::Outside if step.reads != survey.image.isa.state() => {
                own.writes |= convention.volatile;
            }
            To::Outside | To::Unknown => {}
        }
    }
    if !dead {
        own.to.extend(next(survey, piece));
    }
    own.to.sort_unstable();
    own.to.dedup();
    own
}

/// The piece that control goes on to at the end of one.
fn next(survey: &Survey<'_>, piece: &Piece) -> Option<usize> {
    pieces::starting(&survey.pieces, piece.end)
}

/// Tells for all pieces what calls of them do.
pub(super) fn summaries(survey: &Survey<'_>, convention: &Convention) -> Vec<Summary> {
    let pieces = &survey.pieces;
    let owns = in_parts(survey, |range| {
        let mut buffer = Vec::new();
        let of = |index: usize| {
            let piece = &pieces[index];
            steps(survey, piece, &mut buffer);
            own(survey, piece, &buffer, convention)
        };
        range.map(of).collect()
    });
    let mut found: Vec<Summary> = owns
        .iter()
        .map(|own| Summary {
            entry: 0,
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
    used(survey, &mut found, &owns, &order);
    found
}

/// Finds what calls of all pieces may use: from nothing on, until nothing changes any more. Before that, it is not all.
fn used(survey: &Survey<'_>, found: &mut [Summary], owns: &[Own], order: &[usize]) {
    let pieces = &survey.pieces;
    let mut callers: Vec<Vec<u32>> = vec![Vec::new(); owns.len()];
    for (index, own) in owns.iter().enumerate() {
        for &to in &own.to {
            callers[to].push(index as u32);
        }
    }
    let (mut buffer, mut live) = (Vec::new(), Vec::new());
    let mut open: VecDeque<usize> = order.iter().copied().collect();
    let mut waits = vec![true; owns.len()];
    while let Some(index) = open.pop_front() {
        waits[index] = false;
        let piece = &pieces[index];
        steps(survey, piece, &mut buffer);
        find(survey, found, piece, &buffer, |_| false, &mut live);
        let entry = live[0] | found[index].entry;
        if entry == found[index].entry {
            continue;
        }
        found[index].entry = entry;
        for &caller in &callers[index] {
            if !std::mem::replace(&mut waits[caller as usize], true) {
                open.push_back(caller as usize);
            }
        }
    }
}

/// Runs something on all pieces in several threads.
fn in_parts<T: Send>(survey: &Survey<'_>, run: impl Fn(Range<usize>) -> Vec<T> + Sync) -> Vec<T> {
    let pieces = survey.pieces.len();
    let share = pieces.div_ceil(survey.threads).max(1);
    let mut all = Vec::with_capacity(pieces);
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
            all.extend(part);
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

/// What is used from the start of each instruction of a piece on.
pub(super) fn find(
    survey: &Survey<'_>,
    summaries: &[Summary],
    piece: &Piece,
    steps: &[Step],
    is_data: impl Fn(usize) -> bool,
    live: &mut Vec<u32>,
) {
    let isa = survey.image.isa;
    let (all, Some(convention)) = (isa.state(), isa.convention()) else {
        return;
    };
    let own = pieces::find(&survey.pieces, piece.start);
    let clobbers = own.map_or(0, |own| summaries[own].clobbers);
    let leaving = |flow: Flow, behind: u32| match flow {
        Flow::Call(addr) => match to(survey, addr) {
            To::Piece(callee) => {
                let Summary { entry, clobbers } = summaries[callee];
                entry | !convention.volatile | behind & !clobbers
            }
            To::Outside => convention.entry,
            To::Unknown => all,
        },
        Flow::IndirectCall => convention.entry,
        Flow::Jump(addr) | Flow::Branch(addr) => match to(survey, addr) {
            To::Piece(callee) => summaries[callee].entry,
            To::Outside => convention.entry,
            To::Unknown => all,
        },
        Flow::Return { how: How::Plain } => convention.returned(clobbers),
        _ => all,
    };
    let end = next(survey, piece).map_or(all, |next| summaries[next].entry);
    solve(piece, steps, is_data, (all, end), leaving, live);
}
