//! Sequences of `lr` and `sc`: what is executed between the two must stay there.
//!
//! An `sc` succeeds only if nothing has happened since the `lr` that takes the reservation away, and processors promise
//! this only for a few simple instructions in a row. A breakpoint or a jump to elsewhere in between makes a loop that
//! never ends.
//!
//! An instruction is in a sequence if control may come to it from an `lr` without passing an `sc`, and may go on from
//! it to an `sc` without passing an `lr`. That is found by going through the code forwards from each `lr` and backwards
//! from each `sc`. Distances do not matter: the way out of a loop leads to no `sc`, and what lies on it is not in the
//! sequence, while code of the sequence that was put far away is. An `sc` to which control may come from where the code
//! begins, or from somewhere unknown, without passing an `lr`, takes everything on that way with it.

use alloc::vec::Vec;

use super::super::scan::Flow;
use super::{Places, Step};

/// Where an instruction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// In no sequence.
    Outside,
    /// It is an `lr`.
    First,
    /// Between.
    Between,
    /// It is an `sc`.
    Last,
}

/// Finds what is between: the steps must be in order, and say of themselves what is an `lr` or `sc`.
pub(super) fn parts(steps: &mut [Step]) {
    let places = Places::new(steps);
    let (forwards, backwards) = edges(steps, &places);
    let reach = |from: Part, to: Part, edges: &Edges| {
        let mut reached = vec![false; steps.len()];
        let mut open: Vec<usize> = (0..steps.len())
            .filter(|&index| steps[index].part == from)
            .collect();
        while let Some(index) = open.pop() {
            for &next in edges.of(index) {
                let next = next as usize;
                if !reached[next] && steps[next].part != to {
                    reached[next] = true;
                    open.push(next);
                }
            }
        }
        reached
    };
    // From all `lr`s, ending at `sc`s, and back.
    let after = reach(Part::First, Part::Last, &forwards);
    let before = reach(Part::Last, Part::First, &backwards);
    // Back from an `sc` to where nothing is known of what was before.
    let unknown = unknown(steps, &places, &before, &forwards, &backwards);
    for (index, step) in steps.iter_mut().enumerate() {
        if step.part == Part::Outside && before[index] && (after[index] || unknown[index]) {
            step.part = Part::Between;
        }
    }
}

/// Those on a way to an `sc` to which control may come without an `lr`: from the first instruction, from where calls
/// lead, or by ways that nobody sees.
fn unknown(
    steps: &[Step],
    places: &Places,
    before: &[bool],
    forwards: &Edges,
    backwards: &Edges,
) -> Vec<bool> {
    let mut found = vec![false; steps.len()];
    let mut open = Vec::new();
    let mut begin = |index: usize, found: &mut Vec<bool>| {
        if before[index] && !found[index] {
            found[index] = true;
            open.push(index);
        }
    };
    for (index, step) in steps.iter().enumerate() {
        if index == 0 || backwards.of(index).is_empty() {
            begin(index, &mut found);
        }
        if let Flow::Call(to) = step.flow
            && let Some(callee) = places.at(to)
        {
            begin(callee, &mut found);
        }
    }
    while let Some(index) = open.pop() {
        for &next in forwards.of(index) {
            let next = next as usize;
            if before[next] && !found[next] && steps[next].part == Part::Outside {
                found[next] = true;
                open.push(next);
            }
        }
    }
    found
}

/// Where control goes on from each step, or comes from: indexes in one row, and where those of each begin.
struct Edges {
    starts: Vec<u32>,
    all: Vec<u32>,
}

impl Edges {
    fn new(count: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Self {
        let mut starts = vec![0; count + 1];
        for (from, _) in pairs.clone() {
            starts[from as usize + 1] += 1;
        }
        for index in 0..count {
            starts[index + 1] += starts[index];
        }
        let mut free = starts.clone();
        let mut all = vec![0; starts[count] as usize];
        for (from, to) in pairs {
            let place = &mut free[from as usize];
            all[*place as usize] = to;
            *place += 1;
        }
        Self { starts, all }
    }

    fn of(&self, index: usize) -> &[u32] {
        &self.all[self.starts[index] as usize..self.starts[index + 1] as usize]
    }
}

/// Forwards and backwards.
fn edges(steps: &[Step], places: &Places) -> (Edges, Edges) {
    let mut pairs = Vec::with_capacity(steps.len() + steps.len() / 4);
    for (index, step) in steps.iter().enumerate() {
        let target = match step.flow {
            Flow::Branch(to) | Flow::Jump(to) => places.at(to),
            _ => None,
        };
        let next = (!step.flow.is_end() && index + 1 < steps.len()).then_some(index + 1);
        for to in target.into_iter().chain(next) {
            pairs.push((index as u32, to as u32));
        }
    }
    let backwards = pairs.iter().map(|&(from, to)| (to, from));
    (
        Edges::new(steps.len(), pairs.iter().copied()),
        Edges::new(steps.len(), backwards),
    )
}

#[cfg(test)]
mod tests {
    use super::super::{Immovable, steps};
    use super::Part::{Between, First, Last, Outside};
    use super::*;

    const LR: u32 = 0x1005_27AF; // lr.w a5, (a0)
    const SC: u32 = 0x18C5_272F; // sc.w a4, a2, (a0)
    const NOP: u32 = 0x13;
    const RET: u32 = 0x8067;

    /// bne a5, a1, so far
    fn bne(distance: i64) -> u32 {
        super::super::super::encode::b(1, 15, 11, distance)
    }

    fn jump(distance: i64) -> u32 {
        super::super::super::encode::j(0, distance)
    }

    fn call(distance: i64) -> u32 {
        super::super::super::encode::j(1, distance)
    }

    fn found(words: &[u32]) -> Vec<Part> {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let steps = steps(&code, 0x1000);
        for step in &steps {
            let reserved = step.immovable == Some(Immovable::Reserved);
            assert_eq!(reserved, step.part != Outside, "{step:?}");
        }
        steps.iter().map(|step| step.part).collect()
    }

    #[test]
    fn a_loop_that_compares_and_swaps() {
        // lr; bne out; sc; bne to the lr; out: ret
        let parts = found(&[NOP, LR, bne(12), SC, bne(-12), RET]);
        assert_eq!(parts, [Outside, First, Between, Last, Outside, Outside]);
    }

    #[test]
    fn code_far_away_is_between_and_the_way_out_is_not() {
        let parts = found(&[
            LR,
            bne(20), // to the far part
            SC,
            NOP,
            RET,
            NOP,       // nothing leads here
            NOP,       // the far part
            jump(-20), // to the sc
        ]);
        let expected = [
            First, Between, Last, Outside, Outside, Between, Between, Between,
        ];
        // What nothing leads to runs into the far part and may be led to by what is not seen.
        assert_eq!(parts, expected);
    }

    #[test]
    fn a_branch_backwards_within() {
        // jump over; back: nop; jump to the sc; lr; bne back; sc; ret
        let parts = found(&[jump(12), NOP, jump(12), LR, bne(-12), SC, RET]);
        assert_eq!(
            parts,
            [Outside, Between, Between, First, Between, Last, Outside]
        );
    }

    #[test]
    fn an_lr_without_an_sc_takes_nothing_with_it() {
        assert_eq!(found(&[LR, NOP, RET]), [First, Outside, Outside]);
        // A second lr begins anew, but the first sequence may go on to it.
        let parts = found(&[LR, NOP, LR, NOP, SC, RET]);
        assert_eq!(parts, [First, Outside, First, Between, Last, Outside]);
    }

    #[test]
    fn an_sc_without_an_lr_takes_all_before_it() {
        // A function that is called within a sequence, in the same code.
        let parts = found(&[LR, call(12), SC, RET, NOP, SC, RET]);
        assert_eq!(
            parts,
            [First, Between, Last, Outside, Between, Last, Outside]
        );
        assert_eq!(found(&[NOP, SC]), [Between, Last]);
    }
}
