//! Straight runs of instructions, each combined into one step. The analysis works on these.
//!
//! What is used at the start of a run follows from what is used at its end: what it reads itself, and the rest without
//! what it overwrites. This does not hold where control may go elsewhere, so runs end there.

use hodo_isa::liveness::{self, Graph, Leads, Passes};

use crate::nodes::{Code, Node, Way};

/// A run of instructions.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// The index of its first instruction. Its last instruction, before the first one of the next run, is the only one
    /// that may lead elsewhere.
    first: u32,
    /// What all of them together read before they overwrite it, and what they overwrite.
    reads: u32,
    writes: u32,
    /// How it ends.
    end: End,
}

/// What follows a run.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The next run.
    Next,
    /// The next run, or this one of the piece.
    Branch(u32),
    /// This run.
    Jump(u32),
    /// Something else; the last instruction says what.
    Other,
}

/// The runs of one or more pieces, one piece after the other.
#[derive(Default)]
pub(super) struct Blocks {
    all: Vec<Block>,
    /// A buffer for the instructions of a piece: first whether a run begins there, later which run it belongs to.
    numbers: Vec<u32>,
}

impl Blocks {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Cuts the instructions of a piece into runs. Runs also begin at `starts`.
    pub fn cut(&mut self, code: Code<'_>, starts: &[usize]) {
        let nodes = code.nodes;
        let base = self.all.len();
        self.numbers.clear();
        self.numbers.resize(nodes.len(), 0);
        starts.iter().for_each(|&at| self.numbers[at] = 1);
        for to in nodes.iter().filter_map(Node::target) {
            self.numbers[to] = 1;
        }
        let mut begins = true;
        for (at, node) in nodes.iter().enumerate() {
            if begins || self.numbers[at] != 0 {
                self.numbers[at] = (self.all.len() - base) as u32;
                self.all.push(Block {
                    first: at as u32,
                    reads: 0,
                    writes: 0,
                    end: End::Next,
                });
            }
            let Some(block) = self.all.last_mut() else {
                continue;
            };
            block.reads |= node.reads & !block.writes;
            block.writes |= node.writes;
            begins = !node.goes_on();
            if begins {
                block.end = match code.way(node) {
                    Way::Branch(to) => End::Branch(to as u32),
                    Way::Jump(to) => End::Jump(to as u32),
                    _ => End::Other,
                };
            }
        }
        for block in &mut self.all[base..] {
            if let End::Branch(to) | End::Jump(to) = &mut block.end {
                *to = self.numbers[*to as usize];
            }
        }
    }

    /// Returns the run that begins with an instruction of the last piece that was cut.
    pub fn number(&self, at: usize) -> usize {
        self.numbers[at] as usize
    }

    /// Returns all of them.
    #[cfg(test)]
    pub fn all(&self) -> Runs<'_> {
        Runs(&self.all)
    }

    /// Some runs: those of one piece.
    pub fn of(&self, range: std::ops::Range<usize>) -> Runs<'_> {
        Runs(&self.all[range])
    }
}

/// The runs of one piece.
#[derive(Clone, Copy)]
pub(super) struct Runs<'b>(&'b [Block]);

/// The surroundings of a piece.
pub(super) struct Around<'a, L> {
    /// Gets what is used after control comes back, and returns what is used where control leaves.
    pub leaving: L,
    /// Everything that can be used.
    pub all: u32,
    /// What is used after the piece.
    pub end: u32,
    /// The runs to which jumps through registers lead, too.
    pub led_to: &'a [usize],
}

impl<L: Fn(Way, u32) -> u32> Around<'_, L> {
    /// Returns what is used after an instruction from which control may leave. `live` has what is used at the places
    /// that `led_to` names.
    #[inline]
    pub fn away(&self, way: Way, next: u32, live: &[u32]) -> u32 {
        match way {
            Way::Amiss => self.all,
            way @ Way::BranchAway(_) => next | (self.leaving)(way, next),
            way @ Way::IndirectJump => {
                let there = self.led_to.iter().map(|&to| live[to]);
                there.fold((self.leaving)(way, next), |all, of| all | of)
            }
            way => (self.leaving)(way, next),
        }
    }
}

/// Runs and what is around them.
struct Surrounded<'a, L> {
    runs: &'a [Block],
    code: Code<'a>,
    around: &'a Around<'a, L>,
}

impl<L: Fn(Way, u32) -> u32> Graph for Surrounded<'_, L> {
    fn count(&self) -> usize {
        self.runs.len()
    }

    #[inline]
    fn leads(&self, step: usize) -> Leads {
        match self.runs[step].end {
            End::Next => Leads::Next,
            End::Branch(run) => Leads::Branch(run as usize),
            End::Jump(run) => Leads::Jump(run as usize),
            End::Other => Leads::Away,
        }
    }

    #[inline]
    fn away(&self, step: usize, next: u32, live: &[u32]) -> u32 {
        let last = &self.code.nodes[end(self.code, self.runs, step) - 1];
        self.around.away(self.code.way(last), next, live)
    }

    #[inline]
    fn before(&self, step: usize, after: u32) -> u32 {
        let block = &self.runs[step];
        after & !block.writes | block.reads
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

/// The instruction after the last one of a run.
fn end(code: Code<'_>, runs: &[Block], index: usize) -> usize {
    let next = runs.get(index + 1);
    next.map_or(code.nodes.len(), |next| next.first as usize)
}

impl<'b> Runs<'b> {
    /// Goes backward through the runs until nothing changes. `live` holds what is known to be used at the start of each
    /// run, and is updated.
    pub fn solve<L: Fn(Way, u32) -> u32>(
        self,
        code: Code<'_>,
        around: &Around<'_, L>,
        live: &mut [u32],
        passes: &mut Passes,
    ) {
        liveness::solve(&self.with(code, around), live, passes);
    }

    fn with<'a, L>(self, code: Code<'a>, around: &'a Around<'a, L>) -> Surrounded<'a, L>
    where
        'b: 'a,
    {
        Surrounded {
            runs: self.0,
            code,
            around,
        }
    }

    /// Returns what is used at the start of each instruction up to this one, given what is used at the start of each
    /// run. If these are all instructions, there is one more entry for the end.
    pub fn spread<L: Fn(Way, u32) -> u32>(
        self,
        code: Code<'_>,
        around: &Around<'_, L>,
        live: &[u32],
        until: usize,
        found: &mut Vec<u32>,
    ) {
        found.clear();
        let count = code.nodes.len();
        let blocks = self
            .0
            .partition_point(|block| block.first as usize <= until);
        let known = blocks.checked_sub(1);
        let known = known.map_or(0, |last| end(code, self.0, last));
        found.resize(known, 0);
        if until >= count {
            found.push(around.end);
        }
        for (index, block) in self.0[..blocks].iter().enumerate() {
            let next = live.get(index + 1).copied().unwrap_or(around.end);
            let mut after = liveness::after(&self.with(code, around), index, next, live);
            for at in (block.first as usize..end(code, self.0, index)).rev() {
                let node = &code.nodes[at];
                after = after & !node.writes | node.reads;
                found[at] = after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::solve;
    use super::*;
    use crate::nodes::Nodes;

    /// The registers of the code that this test makes up.
    const ALL: u32 = 0xFF;

    fn leaving(way: Way, next: u32) -> u32 {
        match way {
            Way::IndirectCall => 0x11 | next & 0xF0,
            Way::IndirectJump => 2,
            Way::Return => 4,
            _ => ALL,
        }
    }

    #[test]
    fn runs_say_what_instructions_say() {
        let mut seed = 7u32;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as usize % below
        };
        for round in 0..2_000 {
            let count = 1 + random(40);
            let insns: Vec<(u32, u32, Way)> = (0..count)
                .map(|_| {
                    let way = match random(12) {
                        0 | 1 => Way::Branch(random(count)),
                        2 => Way::Jump(random(count)),
                        3 => Way::IndirectCall,
                        4 => [Way::IndirectJump, Way::Return, Way::Invalid][random(3)],
                        _ => Way::Next,
                    };
                    let register = |random: usize| 1u32.checked_shl(random as u32).unwrap_or(0);
                    (register(random(40)) & ALL, register(random(9)) & ALL, way)
                })
                .collect();
            let led_to: Vec<usize> = (0..random(3)).map(|_| random(count)).collect();
            let nodes = Nodes::made(&insns);
            let code = nodes.of(0);
            let mut blocks = Blocks::default();
            blocks.cut(code, &led_to);
            let runs: Vec<usize> = led_to.iter().map(|&to| blocks.number(to)).collect();
            let mut starts = vec![0; blocks.len()];
            // The result for less is where the search for more begins.
            for end in [0x20, 0x60] {
                let around = Around {
                    leaving,
                    all: ALL,
                    end,
                    led_to: &runs,
                };
                let all = blocks.all();
                all.solve(code, &around, &mut starts, &mut Passes::default());
                let mut expected = Vec::new();
                let is_data = |_| false;
                let here = Around {
                    leaving,
                    all: ALL,
                    end,
                    led_to: &led_to,
                };
                solve(code, is_data, &here, &mut expected);
                let mut found = Vec::new();
                all.spread(code, &around, &starts, count, &mut found);
                assert_eq!(found, expected, "round {round}: {insns:?}");
                let until = random(count);
                all.spread(code, &around, &starts, until, &mut found);
                assert_eq!(
                    found[..=until],
                    expected[..=until],
                    "round {round}: {insns:?}"
                );
            }
        }
    }
}
