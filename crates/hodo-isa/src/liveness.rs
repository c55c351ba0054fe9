//! Liveness: what is used from a place in code on, before it is overwritten. It knows nothing of instruction sets: what
//! is followed may be registers or flags, and a step may be one instruction or a run of them.
//!
//! * [`solve`] is for code that is all there: a backward data-flow analysis that runs until nothing changes.
//! * [`Path`] goes forward along one way, as far as someone looks.

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

/// What is used along one way through code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    used: u32,
    rest: u32,
}

impl Path {
    /// Begins; all of this is followed.
    #[must_use]
    pub const fn new(all: u32) -> Self {
        Self { used: 0, rest: all }
    }

    /// A step comes next, which uses and then overwrites something.
    pub const fn step(&mut self, uses: u32, overwrites: u32) {
        self.used |= uses & self.rest;
        self.rest &= !overwrites;
    }

    /// Of what is neither used nor overwritten, only this may be used later.
    pub const fn end(&mut self, live: u32) {
        self.rest &= live;
    }

    /// Whether something is used.
    #[must_use]
    pub const fn is_used(&self) -> bool {
        self.used != 0
    }

    /// Whether everything is overwritten, so nothing that comes later matters.
    #[must_use]
    pub const fn is_decided(&self) -> bool {
        self.rest == 0
    }

    /// What is used, or may be later.
    #[must_use]
    pub const fn live(&self) -> u32 {
        self.used | self.rest
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_overwritten_before_it_is_used_is_dead() {
        let mut path = Path::new(0b1111);
        path.step(0b0001, 0b0011);
        assert!(path.is_used() && !path.is_decided());
        // The first two are new values by now.
        path.step(0b0010, 0b0100);
        assert_eq!(path.live(), 0b1001);
        path.end(0b0111);
        assert!(path.is_decided());
        assert_eq!(path.live(), 0b0001);
    }
}
