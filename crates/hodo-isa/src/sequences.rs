//! Sequences of a load that reserves memory and a store that depends on it. The instructions between the two must stay
//! in place. RISC-V has `lr` and `sc`, AArch64 `ldxr` and `stxr`; these comments say `lr` and `sc` for both.
//!
//! An `sc` succeeds only if nothing since the `lr` has canceled the reservation, and processors promise this only for
//! a few simple instructions in a row. A breakpoint or a jump to elsewhere in between makes the loop run forever.
//!
//! An instruction is in a sequence if control may reach it from an `lr` without passing an `sc`, and may go on from it
//! to an `sc` without passing an `lr`. To find these, we follow the code forward from each `lr` and backward from each
//! `sc`. Distances do not matter: the exit of a loop leads to no `sc`, so code after it is not in the sequence, whereas
//! code of the sequence that was placed far away is. If control may reach an `sc` from the start of the code, or from
//! somewhere unknown, without passing an `lr`, everything on that path is in the sequence, too.

use alloc::vec::Vec;

use crate::linked::{Part, Step};

/// Finds the instructions that are in sequences, and marks each as immovable for the reason `reserved`, unless it
/// already has another reason. The steps must be in order, and their `part` must say which are `lr` and `sc`.
pub(crate) fn mark<Why: Copy>(steps: &mut [Step<Why>], reserved: Why) {
    if steps.iter().all(|step| step.part == Part::Outside) {
        return;
    }
    find(steps);
    for step in steps.iter_mut().filter(|step| step.part != Part::Outside) {
        step.immovable.get_or_insert(reserved);
    }
}

fn find<Why>(steps: &mut [Step<Why>]) {
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
    // Forward from all `lr`s, ending at `sc`s, and back.
    let after = reach(Part::First, Part::Last, &forwards);
    let before = reach(Part::Last, Part::First, &backwards);
    // Back from each `sc` to where it is not known what ran before.
    let unknown = unknown(steps, &places, &before, &forwards, &backwards);
    for (index, step) in steps.iter_mut().enumerate() {
        if step.part == Part::Outside && before[index] && (after[index] || unknown[index]) {
            step.part = Part::Between;
        }
    }
}

/// The instructions on paths to an `sc` that control may reach without an `lr`: from the first instruction, from call
/// targets, or by paths that cannot be seen.
fn unknown<Why>(
    steps: &[Step<Why>],
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
        if let Some(to) = step.callee()
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

/// Where control goes from each step, or comes from: all indexes in one row, and where those of each step begin.
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

/// The edges forward and backward.
fn edges<Why>(steps: &[Step<Why>], places: &Places) -> (Edges, Edges) {
    let mut pairs = Vec::with_capacity(steps.len() + steps.len() / 4);
    for (index, step) in steps.iter().enumerate() {
        let target = step.target().and_then(|to| places.at(to));
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

/// Where instructions are, by their addresses.
pub(crate) struct Places {
    base: u64,
    /// For each two bytes, the number of the instruction that begins there plus one, or zero.
    numbers: Vec<u32>,
}

impl Places {
    pub fn new<Why>(steps: &[Step<Why>]) -> Self {
        let base = steps.first().map_or(0, |step| step.addr);
        let end = steps.last().map_or(0, |step| step.addr);
        let mut numbers = vec![0; (end.wrapping_sub(base) / 2) as usize + 1];
        for (number, step) in (1..).zip(steps) {
            numbers[(step.addr.wrapping_sub(base) / 2) as usize] = number;
        }
        Self { base, numbers }
    }

    /// The number of the instruction that begins at an address.
    pub fn at(&self, addr: u64) -> Option<usize> {
        let offset = addr.wrapping_sub(self.base);
        let number = *self.numbers.get(usize::try_from(offset / 2).ok()?)?;
        (offset.is_multiple_of(2) && number != 0).then(|| number as usize - 1)
    }
}
