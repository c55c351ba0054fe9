//! Liveness at each instruction: of the arithmetic flags, or of the general registers. A backward data-flow analysis
//! that runs until nothing changes.

mod blocks;
mod expected;
mod registers;

use std::collections::{HashMap, HashSet};

use hodo_isa::code::{Flow, Step};

use crate::bits::Bits;
use crate::nodes::{Code, Node, Nodes, To, Way};
use crate::pieces::{self, Piece};
use crate::survey::Survey;
use registers::{Cut, UsedAfter};

/// After this many rounds, everything is assumed to be used.
const PASSES: usize = 64;
/// The number of instructions of a callee that are inspected to find out whether it uses the caller's flags.
const LOOK_AHEAD: usize = 8;

/// What is known about all functions.
pub(crate) struct Live<'s> {
    survey: &'s Survey<'s>,
    known: Known<'s>,
    /// Registers that are assumed to be used everywhere.
    keep: u32,
    /// Pieces whose callers were inspected for the registers that they use after their calls, and the result.
    asked: HashMap<usize, u32>,
}

enum Known<'s> {
    /// Starts of pieces that do not use the flags that they are entered with.
    Flags(Bits),
    /// What all functions do.
    Registers(Box<Summaries<'s>>),
}

/// What is known about registers.
pub(crate) struct Summaries<'s> {
    /// By piece.
    pieces: Vec<Summary>,
    /// The instructions of all pieces.
    decoded: &'s [Nodes],
    /// What is used from those places in the middle of pieces on to which other pieces lead.
    inside: HashMap<u64, u32>,
    /// For each piece, the places in other pieces to which its jumps through registers may lead.
    outside: HashMap<usize, Vec<u64>>,
    /// The instructions of all pieces in runs.
    cut: Cut,
}

/// What calls of a function do to registers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    /// The registers that it may use.
    entry: u32,
    /// Whether all targets of its jumps through registers are known: other functions, and places in it that are known
    /// to be targets.
    jumps: bool,
    /// The registers that it overwrites, also in the view of compilers: no caller expects a value in them.
    clobbers: u32,
}

impl<'s> Live<'s> {
    pub fn new(survey: &'s Survey<'s>, keep: u32) -> Self {
        Self {
            keep,
            known: match survey.image.isa.convention() {
                None => Known::Flags(ignoring(survey)),
                Some(convention) => {
                    Known::Registers(Box::new(registers::summaries(survey, &convention)))
                }
            },
            survey,
            asked: HashMap::new(),
        }
    }

    /// Inspects all code of the image for the registers that it uses after calls of the functions that begin at these
    /// addresses. This is slow, and is meant for images that compilers made ready for tracers.
    pub fn ask_callers(&mut self, functions: &HashSet<u64>) {
        let convention = self.survey.image.isa.convention();
        let (Known::Registers(summaries), Some(convention)) = (&self.known, convention) else {
            return;
        };
        if functions.is_empty() {
            return;
        }
        let expected = expected::expected(self.survey, summaries, &convention);
        let pieces = functions.iter();
        let pieces = pieces.filter_map(|&start| pieces::starting(&self.survey.pieces, start));
        self.asked = pieces.map(|piece| (piece, expected[piece])).collect();
    }

    /// Returns what is used from the start of each instruction of a piece on before it is overwritten, with one more
    /// entry for the end. If the target of a jump is unknown, everything is assumed to be used. `is_data` returns
    /// whether some of them are not instructions.
    pub fn find(
        &self,
        piece: &Piece,
        steps: &[Step],
        is_data: impl Fn(usize) -> bool,
        live: &mut Vec<u32>,
    ) {
        let mut nodes = Nodes::default();
        nodes.add(&self.survey.image, &self.survey.pieces, piece, steps);
        let code = nodes.of(0);
        match &self.known {
            Known::Flags(ignoring) => {
                let all = self.survey.image.isa.state();
                let targets = &self.survey.targets;
                let returned = match targets.returns_flags.first(piece.start..piece.end) {
                    Some(_) => all,
                    None => 0,
                };
                let ignores = |piece: usize| ignoring.get(self.survey.pieces[piece].start);
                let leaving = |way: Way, _: u32| match way {
                    Way::Call(To::Outside) | Way::IndirectCall => 0,
                    Way::Call(To::Piece(piece)) if ignores(piece) => 0,
                    Way::Return | Way::OtherReturn => returned,
                    _ => all,
                };
                solve(code, is_data, (all, all), leaving, &[], live);
            }
            Known::Registers(summaries) => {
                let own = pieces::starting(&self.survey.pieces, piece.start);
                let asked = own.and_then(|own| self.asked.get(&own));
                let after = asked.map_or(UsedAfter::Callers, |&asked| UsedAfter::These(asked));
                registers::find(self.survey, summaries, piece, after, code, is_data, live);
                live.iter_mut().for_each(|live| *live |= self.keep);
            }
        }
    }

    /// Returns the first instructions of a piece, those that begin within this many bytes, and the results of
    /// [`find`](Self::find) for them if all of them are instructions; perhaps also for some more. Returns nothing for
    /// instruction sets that have enough registers.
    pub fn of_piece(&self, index: usize, within: u64, live: &mut Vec<u32>) -> &[Node] {
        let Known::Registers(summaries) = &self.known else {
            return &[];
        };
        let asked = self.asked.get(&index);
        let after = asked.map_or(UsedAfter::Callers, |&asked| UsedAfter::These(asked));
        let code = summaries.of(index);
        let until = code.nodes.partition_point(|node| node.at() <= within);
        registers::find_in(self.survey, summaries, (index, after), until, live);
        live.iter_mut().for_each(|live| *live |= self.keep);
        &code.nodes[..until]
    }

    /// Returns the registers that are free when the function that a piece begins has returned.
    pub fn after(&self, piece: usize) -> u32 {
        let isa = self.survey.image.isa;
        match (&self.known, isa.convention()) {
            (Known::Registers(summaries), Some(convention)) => {
                let asked = self.asked.get(&piece).copied();
                let returned =
                    asked.unwrap_or_else(|| convention.returned(summaries.pieces[piece].clobbers));
                isa.usable(!(returned | self.keep)) & !isa.link()
            }
            _ => 0,
        }
    }
}

impl<'s> Summaries<'s> {
    /// The instructions of a piece.
    fn of(&self, piece: usize) -> Code<'s> {
        let mut at = piece;
        let part = self.decoded.iter().find(|part| {
            let here = at < part.count();
            if !here {
                at -= part.count();
            }
            here
        });
        part.map_or_else(Code::default, |part| part.of(at))
    }
}

/// Adds to a set. Returns whether the set has changed.
fn grow(set: &mut u32, with: u32) -> bool {
    let changed = with & !*set != 0;
    *set |= with;
    changed
}

/// A branch backward, and what was known to be used at its target when it was inspected.
struct Back {
    from: usize,
    to: usize,
    known: u32,
}

/// Goes backward through the code of a piece, once; if a piece is inspected often, [`blocks`] are faster. `leaving`
/// gets what is used after control comes back, and returns what is used where control leaves. `all` is everything that
/// can be used, `end` is what is used after the piece. `led_to` are the instructions that jumps through registers lead
/// to, too.
fn solve(
    code: Code<'_>,
    is_data: impl Fn(usize) -> bool,
    (all, end): (u32, u32),
    leaving: impl Fn(Way, u32) -> u32,
    led_to: &[usize],
    live: &mut Vec<u32>,
) {
    let nodes = code.nodes;
    let count = nodes.len();
    live.clear();
    live.resize(count, 0);
    live.push(end);
    // In the order of inspection.
    let mut back: Vec<Back> = Vec::new();
    let mut from = count;
    for _ in 0..PASSES {
        let mut changed = false;
        let mut at = back.partition_point(|back| back.from >= from);
        let mut next = live[from];
        for index in (0..from).rev() {
            let node = &nodes[index];
            let mut to = |to: usize| {
                let known = live[to];
                if to <= index {
                    let from = index;
                    match back.get_mut(at) {
                        Some(back) => back.known = known,
                        None => back.push(Back { from, to, known }),
                    }
                    at += 1;
                }
                known
            };
            let after = match node.goes_on() {
                true => next,
                false => match code.way(node) {
                    Way::Next => next,
                    Way::Branch(target) => next | to(target),
                    Way::Jump(target) => to(target),
                    Way::Amiss => all,
                    way @ Way::BranchAway(_) => next | leaving(way, next),
                    way @ Way::IndirectJump => {
                        let there = led_to.iter().map(|&to| live[to]);
                        there.fold(leaving(way, next), |all, of| all | of)
                    }
                    way => leaving(way, next),
                },
            };
            let before = match is_data(index) {
                true => all,
                false => after & !node.writes | node.reads,
            };
            changed |= before != live[index];
            live[index] = before;
            next = before;
        }
        // Begins at the last place where less was known.
        let stale = back.iter().find(|back| live[back.to] != back.known);
        from = match stale {
            _ if !led_to.is_empty() && changed => count,
            Some(back) => back.from + 1,
            None => return,
        };
    }
    // Practically never: deeply nested loops.
    live.fill(all);
}

/// Returns the starts of pieces that do not use the flags that they are entered with.
fn ignoring(survey: &Survey<'_>) -> Bits {
    let isa = survey.image.isa;
    let ignoring = Bits::new(&survey.image.text);
    for piece in &survey.pieces {
        let Some(text) = survey.image.text_at(piece.start) else {
            continue;
        };
        let mut open = isa.state();
        let code = text.slice(piece.start, piece.end);
        let mut asks = false;
        for step in isa.steps(code, piece.start).take(LOOK_AHEAD) {
            asks = step.reads & open != 0;
            open &= !step.writes;
            if asks || open == 0 || step.flow != Flow::Next {
                break;
            }
        }
        if !asks {
            ignoring.set(piece.start);
        }
    }
    ignoring
}
