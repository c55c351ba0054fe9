//! Where jumps through registers may lead, judged by the instructions before them.

use hodo_isa::code::{Flow, InstructionSet, Origin, Reference, Step};

use std::ops::Range;

use crate::image::Text;
use crate::nodes::{Code, Node};
use crate::pieces::Piece;
use crate::survey::Survey;

/// The number of instructions before an indirect jump that are inspected to find its target.
const LOOK_BACK: usize = 24;
/// The number of paths to an indirect jump that are followed.
const PATHS: usize = 32;

/// The indirect jumps of a piece, except for those through one word of memory.
#[derive(Default)]
pub(crate) struct Jumps {
    /// One of them uses a table that was not inspected, or an address from memory.
    pub any: bool,
    /// One of them uses a table of distances from somewhere in the code.
    pub distances: bool,
    /// The target of one of them is unknown.
    pub computed: bool,
}

/// The instructions of a piece, in order.
pub(crate) trait Insns {
    fn count(&self) -> usize;
    /// The address of one of them.
    fn range(&self, at: usize) -> Range<u64>;
    fn is_padding(&self, at: usize) -> bool;
    /// Whether control never continues from it to the next one.
    fn is_end(&self, at: usize) -> bool;
    fn is_indirect_jump(&self, at: usize) -> bool;
    /// Those that branch or jump to one of them.
    fn sources(&self, to: usize) -> Vec<usize>;
}

impl Insns for &[Step] {
    fn count(&self) -> usize {
        self.len()
    }

    fn range(&self, at: usize) -> Range<u64> {
        self[at].addr..self[at].end()
    }

    fn is_padding(&self, at: usize) -> bool {
        self[at].padding
    }

    fn is_end(&self, at: usize) -> bool {
        self[at].flow.is_end()
    }

    fn is_indirect_jump(&self, at: usize) -> bool {
        self[at].flow == Flow::IndirectJump
    }

    fn sources(&self, to: usize) -> Vec<usize> {
        let start = self[to].addr;
        let leads =
            |step: &Step| matches!(step.flow, Flow::Branch(to) | Flow::Jump(to) if to == start);
        let sources = self.iter().enumerate();
        sources
            .filter(|(_, step)| leads(step))
            .map(|(at, _)| at)
            .collect()
    }
}

impl Insns for (&Piece, Code<'_>) {
    fn count(&self) -> usize {
        self.1.nodes.len()
    }

    fn range(&self, at: usize) -> Range<u64> {
        let (piece, code) = self;
        let start = |node: &Node| piece.start + node.at();
        start(&code.nodes[at])..code.nodes.get(at + 1).map_or(piece.end, start)
    }

    fn is_padding(&self, at: usize) -> bool {
        self.1.nodes[at].is_padding()
    }

    fn is_end(&self, at: usize) -> bool {
        self.1.nodes[at].is_end()
    }

    fn is_indirect_jump(&self, at: usize) -> bool {
        self.1.nodes[at].is_indirect_jump()
    }

    fn sources(&self, to: usize) -> Vec<usize> {
        let sources = self.1.nodes.iter().enumerate();
        let sources = sources.filter(|(_, node)| node.target() == Some(to));
        sources.map(|(at, _)| at).collect()
    }
}

impl Jumps {
    /// Inspects the indirect jumps of a piece.
    pub fn of(survey: &Survey<'_>, piece: &Piece, text: &Text<'_>, insns: &impl Insns) -> Self {
        let isa = survey.image.isa;
        let ways = Ways { isa, insns, text };
        let mut jumps = Self::default();
        for index in 0..insns.count() {
            if !insns.is_indirect_jump(index) {
                continue;
            }
            let Range { start, end } = insns.range(index);
            let code = text.slice(start, end);
            let by_slot = isa
                .sweep(code, start)
                .next()
                .is_some_and(|insn| matches!(insn.reference, Reference::Memory(_)));
            if by_slot {
                continue;
            }
            let from = insns.range(index.saturating_sub(LOOK_BACK)).start;
            match ways.trace(&mut vec![index], &mut { PATHS }) {
                Origin::Table if table_is_own(text.slice(from, end), from, survey, piece) => {}
                Origin::Loaded | Origin::Table => jumps.any = true,
                Origin::Distances => {
                    jumps.any = true;
                    jumps.distances = true;
                }
                Origin::Computed | Origin::Open => jumps.computed = true,
            }
        }
        jumps
    }
}

/// The instructions of a piece.
struct Ways<'w, I> {
    isa: &'static dyn InstructionSet,
    insns: &'w I,
    text: &'w Text<'w>,
}

impl<I: Insns> Ways<'_, I> {
    /// Follows the code backward from an indirect jump, along all paths that lead there. `path` has the instructions
    /// seen so far.
    fn trace(&self, path: &mut Vec<usize>, paths: &mut usize) -> Origin {
        let origin = |path: &[usize]| {
            let ranges = path.iter().map(|&index| self.insns.range(index));
            let mut code = ranges.map(|Range { start, end }| (self.text.slice(start, end), start));
            self.isa.origin(&mut code)
        };
        while let Some(&first) = path.last() {
            if first == 0 {
                // A register that the function gets from its caller.
                return match origin(path) {
                    Origin::Open => Origin::Loaded,
                    origin => origin,
                };
            }
            if path.len() > LOOK_BACK {
                return origin(path);
            }
            let mut before = first - 1;
            while before > 0 && self.insns.is_padding(before) {
                before -= 1;
            }
            if self.insns.is_end(before) {
                let found = origin(path);
                let sources = self.insns.sources(first);
                if found != Origin::Open || sources.len() > *paths {
                    return found;
                }
                *paths -= sources.len();
                let len = path.len();
                let mut worst = None;
                for source in sources {
                    path.push(source);
                    let found = self.trace(path, paths);
                    path.truncate(len);
                    worst = worst.max(Some(found));
                }
                return worst.unwrap_or(found);
            }
            path.push(first - 1);
        }
        Origin::Open
    }
}

/// Returns whether instructions form the address of a table in the data whose first distance leads into the piece
/// itself.
fn table_is_own(code: &[u8], addr: u64, survey: &Survey<'_>, piece: &Piece) -> bool {
    survey.image.isa.sweep(code, addr).any(|insn| {
        let Reference::Forms(base) = insn.reference else {
            return false;
        };
        let entry = survey
            .image
            .data_at(base)
            .map_or(&[][..], |data| data.slice(base, base.saturating_add(4)));
        let [entry] = entry.as_chunks::<4>().0 else {
            return false;
        };
        let target = base.wrapping_add_signed(i64::from(i32::from_le_bytes(*entry)));
        (piece.start..piece.end).contains(&target)
    })
}
