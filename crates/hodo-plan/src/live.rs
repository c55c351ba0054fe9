//! What is still of use at each instruction: the arithmetic flags, or the general registers. Code goes backwards until nothing
//! changes: what is used is found, for loops the second time, and so on.

use hodo_arch::code::{Flow, Isa, Step};

use crate::bits::Bits;
use crate::pieces::Piece;
use crate::planner::Survey;

/// So often what is used is looked for before all is taken to be.
const PASSES: usize = 64;
/// Instructions of a callee that are looked at to tell whether it uses the flags that it is called with.
const LOOK_AHEAD: usize = 8;

/// What is known of all functions.
pub(crate) struct Live<'s> {
    survey: &'s Survey<'s>,
    /// Starts of pieces that use the flags that they are entered with.
    asking: Bits,
}

impl<'s> Live<'s> {
    pub fn new(survey: &'s Survey<'s>) -> Self {
        Self {
            asking: asking(survey),
            survey,
        }
    }

    fn isa(&self) -> Isa {
        self.survey.image.isa
    }

    /// What is used from the start of each instruction of a piece on before it is overwritten, and one more for the end. Where control
    /// goes nobody knows where, everything is taken to be used. `is_data` says of some that they are no instructions.
    pub fn find(
        &self,
        piece: &Piece,
        steps: &[Step],
        is_data: impl Fn(usize) -> bool,
        live: &mut Vec<u32>,
    ) {
        let all = self.isa().state();
        let targets = &self.survey.targets;
        let count = steps.len();
        let range = piece.start..piece.end;
        let returned = match targets.returns_flags.first(range.clone()) {
            Some(_) => all,
            None => 0,
        };
        let at = |addr: u64| steps.binary_search_by_key(&addr, |step| step.addr).ok();
        live.clear();
        live.resize(count, 0);
        live.push(all);
        for _ in 0..PASSES {
            let mut changed = false;
            for index in (0..count).rev() {
                let step = &steps[index];
                let to = |to: u64| match range.contains(&to) {
                    true => at(to).map_or(all, |target| live[target]),
                    false => all,
                };
                let next = live[index + 1];
                let after = match step.flow {
                    Flow::Next => next,
                    Flow::Branch(target) => next | to(target),
                    Flow::Jump(target) => to(target),
                    Flow::Call(callee) => self.called(callee),
                    Flow::IndirectCall => 0,
                    Flow::Return { .. } => returned,
                    Flow::IndirectJump | Flow::Fault | Flow::Invalid => all,
                };
                let before = match is_data(index) {
                    true => all,
                    false => after & !step.writes | step.reads,
                };
                changed |= before != live[index];
                live[index] = before;
            }
            if !changed {
                return;
            }
        }
        // As good as never: loops in loops in loops.
        live.fill(all);
    }

    /// The flags that a function uses which is called.
    fn called(&self, callee: u64) -> u32 {
        let all = self.isa().state();
        let Some(text) = self.survey.image.text_at(callee) else {
            return all;
        };
        if text.plt {
            return 0;
        }
        let pieces = &self.survey.pieces;
        let at = pieces.partition_point(|piece| piece.start < callee);
        let begins = pieces.get(at).is_some_and(|piece| piece.start == callee);
        match begins && !self.asking.get(callee) {
            true => 0,
            false => all,
        }
    }
}

/// The starts of pieces that use flags which they are entered with.
fn asking(survey: &Survey<'_>) -> Bits {
    let isa = survey.image.isa;
    let asking = Bits::new(&survey.image.text);
    for piece in &survey.pieces {
        let Some(text) = survey.image.text_at(piece.start) else {
            continue;
        };
        let mut open = isa.state();
        let code = text.slice(piece.start, piece.end);
        for step in isa.steps(code, piece.start).take(LOOK_AHEAD) {
            if step.reads & open != 0 {
                asking.set(piece.start);
                break;
            }
            open &= !step.writes;
            if open == 0 || step.flow != Flow::Next {
                break;
            }
        }
    }
    asking
}
