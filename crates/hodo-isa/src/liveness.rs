//! Liveness: what is used from a place in code on, before it is overwritten. A backward data-flow analysis that runs
//! until nothing changes. It knows nothing of instruction sets: what is followed may be registers or flags, and a step
//! may be one instruction or a run of them.

use alloc::vec::Vec;

/// After this many rounds, everything is assumed to be used.
const PASSES: usize = 64;

/// Where control goes from a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leads {
    /// To the next one.
    Next,
    /// To the next one, or to this one.
    Branch(usize),
    /// To this one.
    Jump(usize),
    /// Elsewhere, or in a way that needs a closer look: [`Graph::away`].
    Away,
}

/// Code, as steps in order.
pub trait Graph {
    /// How many steps there are.
    fn count(&self) -> usize;

    /// Where control goes from one of them.
    fn leads(&self, step: usize) -> Leads;

    /// What is used after a step from which control goes elsewhere. `next` is what is used if it goes on to the next
    /// one, and `live` is what is known of all.
    fn away(&self, step: usize, next: u32, live: &[u32]) -> u32;

    /// What is used before a step, given what is used after it.
    fn before(&self, step: usize, after: u32) -> u32;

    /// Whether [`away`](Self::away) looks at what is used at other steps than the next one.
    fn looks_around(&self) -> bool {
        false
    }

    /// Everything that can be used.
    fn all(&self) -> u32;

    /// What is used after the last step.
    fn end(&self) -> u32;
}

/// What is used after a step, given what is used before the steps that are known.
#[inline]
pub fn after(graph: &impl Graph, step: usize, next: u32, live: &[u32]) -> u32 {
    match graph.leads(step) {
        Leads::Next => next,
        Leads::Branch(to) => next | live[to],
        Leads::Jump(to) => live[to],
        Leads::Away => graph.away(step, next, live),
    }
}

/// A branch backward, and what was known to be used at its target when it was inspected.
struct Back {
    from: usize,
    to: usize,
    known: u32,
}

/// A buffer that is used for one piece of code after the other.
#[derive(Default)]
pub struct Passes {
    back: Vec<Back>,
}

/// Goes backward through code until nothing changes. `live` holds what is known to be used before each step, and is
/// updated; it may begin with zeros, or with a result for less. Returns false if it took too long, and everything is
/// assumed to be used.
pub fn solve(graph: &impl Graph, live: &mut [u32], Passes { back }: &mut Passes) -> bool {
    // In the order of inspection.
    back.clear();
    let mut from = graph.count();
    for _ in 0..PASSES {
        let mut changed = false;
        let mut at = back.partition_point(|back| back.from >= from);
        let mut next = live.get(from).copied().unwrap_or(graph.end());
        for index in (0..from).rev() {
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
            let after = match graph.leads(index) {
                Leads::Next => next,
                Leads::Branch(target) => next | to(target),
                Leads::Jump(target) => to(target),
                Leads::Away => graph.away(index, next, live),
            };
            let before = graph.before(index, after);
            changed |= before != live[index];
            live[index] = before;
            next = before;
        }
        // Begins at the last place where less was known.
        let stale = back.iter().find(|back| live[back.to] != back.known);
        from = match stale {
            _ if graph.looks_around() && changed => graph.count(),
            Some(back) => back.from + 1,
            None => return true,
        };
    }
    // Practically never: deeply nested loops.
    live.fill(graph.all());
    false
}
