//! Where jumps through registers may lead, judged by the instructions before them.

use hodo_isa::code::{Flow, InstructionSet, Origin, Reference, Step};

use crate::image::Text;
use crate::pieces::Piece;
use crate::survey::Survey;

/// Instructions before an indirect jump that are looked at to tell where it goes.
const LOOK_BACK: usize = 24;
/// Ways to an indirect jump that are followed.
const PATHS: usize = 32;

/// The indirect jumps of a piece, but for those through one word of memory.
#[derive(Default)]
pub(crate) struct Jumps {
    /// One is by a table that was not looked at, or to an address from memory.
    pub any: bool,
    /// One is by a table of distances from somewhere in the code.
    pub distances: bool,
    /// One goes nobody knows where.
    pub computed: bool,
}

impl Jumps {
    /// Looks at the indirect jumps among the instructions of a piece.
    pub fn of(survey: &Survey<'_>, piece: &Piece, text: &Text<'_>, steps: &[Step]) -> Self {
        let isa = survey.image.isa;
        let ways = Ways { isa, steps, text };
        let mut jumps = Self::default();
        for (index, step) in steps.iter().enumerate() {
            if step.flow != Flow::IndirectJump {
                continue;
            }
            let code = text.slice(step.addr, step.end());
            let by_slot = isa
                .sweep(code, step.addr)
                .next()
                .is_some_and(|insn| matches!(insn.reference, Reference::Memory(_)));
            if by_slot {
                continue;
            }
            let from = steps[index.saturating_sub(LOOK_BACK)].addr;
            match ways.trace(&mut vec![index], &mut { PATHS }) {
                Origin::Table
                    if table_is_own(text.slice(from, step.end()), from, survey, piece) => {}
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
struct Ways<'w> {
    isa: &'static dyn InstructionSet,
    steps: &'w [Step],
    text: &'w Text<'w>,
}

impl Ways<'_> {
    /// Follows the code backwards from an indirect jump, along all ways that lead there. `path` has the instructions on
    /// the way so far.
    fn trace(&self, path: &mut Vec<usize>, paths: &mut usize) -> Origin {
        let origin = |path: &[usize]| {
            let steps = path.iter().map(|&index| &self.steps[index]);
            let mut code = steps.map(|step| (self.text.slice(step.addr, step.end()), step.addr));
            self.isa.origin(&mut code)
        };
        while let Some(&first) = path.last() {
            if first == 0 {
                // A register that the function is called with.
                return match origin(path) {
                    Origin::Open => Origin::Loaded,
                    origin => origin,
                };
            }
            if path.len() > LOOK_BACK {
                return origin(path);
            }
            let mut before = first - 1;
            while before > 0 && self.steps[before].padding {
                before -= 1;
            }
            if self.steps[before].flow.is_end() {
                let found = origin(path);
                let start = self.steps[first].addr;
                let sources = self.steps.iter().enumerate().filter(
                    |(_, step)| matches!(step.flow, Flow::Branch(to) | Flow::Jump(to) if to == start),
                );
                let sources: Vec<usize> = sources.map(|(index, _)| index).collect();
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

/// Whether some instructions form the address of a table in the data whose first distance leads into the piece itself.
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
