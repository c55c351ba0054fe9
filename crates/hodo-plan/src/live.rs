//! Liveness at each instruction: of the arithmetic flags, or of the general registers. A backward data-flow analysis
//! that runs until nothing changes.

mod blocks;
mod expected;
mod registers;

use std::collections::{HashMap, HashSet};

use hodo_isa::code::{Convention, Flow, Step};
use hodo_isa::liveness::{self, Graph, Leads, Passes};

use crate::bits::Bits;
use crate::nodes::{Code, Node, Nodes, To, Way};
use crate::pieces::{self, Piece};
use crate::survey::Survey;
use blocks::Around;
use registers::{Cut, UsedAfter};

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
    /// Starts of pieces that do not use the flags that they are entered with; `None` if each is inspected when it is
    /// asked about.
    Flags(Option<Bits>),
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

impl Summary {
    /// Returns the registers that are still needed when it returns. `all`: what code that is not known may use.
    fn returned(&self, convention: &Convention, all: u32) -> u32 {
        // It saves what is no argument because its callers expect it back, as those of LLVM's `preserve_most` and of
        // the dynamic linker's functions for TLS descriptors do.
        let saved = match self.entry & all == all {
            true => 0,
            false => self.entry & !convention.entry,
        };
        convention.returned(self.clobbers & !saved)
    }
}

impl<'s> Live<'s> {
    pub fn new(survey: &'s Survey<'s>, keep: u32) -> Self {
        Self {
            keep,
            known: match survey.image.isa.convention() {
                None => Known::Flags((!survey.is_partial).then(|| ignoring(survey))),
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
                let ignores = |piece: usize| {
                    let piece = &self.survey.pieces[piece];
                    match ignoring {
                        Some(ignoring) => ignoring.get(piece.start),
                        None => ignores_flags(self.survey, piece),
                    }
                };
                let leaving = |way: Way, _: u32| match way {
                    Way::Call(To::Outside) | Way::IndirectCall => 0,
                    Way::Call(To::Piece(piece)) if ignores(piece) => 0,
                    Way::Return | Way::OtherReturn => returned,
                    _ => all,
                };
                let around = Around {
                    leaving,
                    all,
                    end: all,
                    led_to: &[],
                };
                solve(code, is_data, &around, live);
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
                let all = isa.state();
                let returned =
                    asked.unwrap_or_else(|| summaries.pieces[piece].returned(&convention, all));
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

/// The instructions of a piece. [`blocks`] are faster for a piece that is inspected often.
struct Insns<'a, D, L> {
    code: Code<'a>,
    /// Whether they are not instructions.
    is_data: D,
    around: &'a Around<'a, L>,
}

impl<D: Fn(usize) -> bool, L: Fn(Way, u32) -> u32> Graph for Insns<'_, D, L> {
    fn count(&self) -> usize {
        self.code.nodes.len()
    }

    #[inline]
    fn leads(&self, step: usize) -> Leads {
        let node = &self.code.nodes[step];
        match node.goes_on() {
            true => Leads::Next,
            false => match self.code.way(node) {
                Way::Next => Leads::Next,
                Way::Branch(to) => Leads::Branch(to),
                Way::Jump(to) => Leads::Jump(to),
                _ => Leads::Away,
            },
        }
    }

    #[inline]
    fn away(&self, step: usize, next: u32, live: &[u32]) -> u32 {
        let way = self.code.way(&self.code.nodes[step]);
        self.around.away(way, next, live)
    }

    #[inline]
    fn before(&self, step: usize, after: u32) -> u32 {
        let node = &self.code.nodes[step];
        match (self.is_data)(step) {
            true => self.around.all,
            false => after & !node.writes | node.reads,
        }
    }

    fn looks_around(&self) -> bool {
        !self.around.led_to.is_empty()
    }

    fn all(&self) -> u32 {
        self.around.all
    }

    fn end(&self) -> u32 {
        self.around.end
    }
}

/// Finds what is used from each instruction of a piece on, with one more entry for the end.
fn solve<L: Fn(Way, u32) -> u32>(
    code: Code<'_>,
    is_data: impl Fn(usize) -> bool,
    around: &Around<'_, L>,
    live: &mut Vec<u32>,
) {
    live.clear();
    live.resize(code.nodes.len(), 0);
    let insns = Insns {
        code,
        is_data,
        around,
    };
    let is_known = liveness::solve(&insns, live, &mut Passes::default());
    live.push(if is_known { around.end } else { around.all });
}

/// Returns the starts of pieces that do not use the flags that they are entered with.
fn ignoring(survey: &Survey<'_>) -> Bits {
    let ignoring = Bits::new(&survey.image.text);
    let pieces = survey.pieces.iter();
    for piece in pieces.filter(|piece| ignores_flags(survey, piece)) {
        ignoring.set(piece.start);
    }
    ignoring
}

/// Returns whether a piece does not use the flags that it is entered with.
fn ignores_flags(survey: &Survey<'_>, piece: &Piece) -> bool {
    let isa = survey.image.isa;
    let Some(text) = survey.image.text_at(piece.start) else {
        return false;
    };
    let mut open = isa.state();
    let code = text.slice(piece.start, piece.end);
    for step in isa.steps(code, piece.start).take(LOOK_AHEAD) {
        if step.reads & open != 0 {
            return false;
        }
        open &= !step.writes;
        if open == 0 || step.flow != Flow::Next {
            break;
        }
    }
    true
}
