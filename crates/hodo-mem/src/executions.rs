//! How often each instruction was executed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hodo_dbi::{Access, Block, Client, Observe, Transfer};

/// A block, and how often its first instructions were executed, by their number.
type Counted = (Arc<Block>, Vec<u64>);

/// Where an instruction is: its address, and its place in a file.
type Place = (u64, Option<u64>);

/// Instructions that are always executed together.
#[derive(Debug, Clone)]
pub struct BasicBlock {
    /// A block that has them.
    pub block: Arc<Block>,
    /// The number of the first one in the block.
    pub first: usize,
    /// How many there are.
    pub instructions: usize,
    /// How often they were executed.
    pub count: u64,
}

/// Counts executions of instructions, of counts or of accesses.
#[derive(Debug)]
pub struct Executions {
    observe: Observe,
    /// By the number of the block.
    blocks: Vec<Option<Counted>>,
}

impl Executions {
    /// `observe` is what it will be told.
    #[must_use]
    pub fn new(observe: Observe) -> Self {
        Self {
            observe,
            blocks: Vec::new(),
        }
    }

    /// The blocks that were executed, and how often each of their instructions.
    pub fn blocks(&self) -> impl Iterator<Item = (&Arc<Block>, Vec<u64>)> {
        let blocks = self.blocks.iter().flatten();
        let all = blocks.map(|(block, uptos)| (block, executions(uptos)));
        all.filter(|(_, counts)| counts.first().is_some_and(|&begun| begun > 0))
    }

    /// What was executed as basic blocks: they begin where control came to, and end at branches.
    #[must_use]
    pub fn basic_blocks(&self) -> Vec<BasicBlock> {
        let mut counts: HashMap<Place, u64> = HashMap::new();
        let mut begins: HashSet<Place> = HashSet::new();
        for (block, executed) in self.blocks() {
            begins.insert(place(block, 0));
            for (number, insn) in block.insns.iter().enumerate() {
                *counts.entry(place(block, number)).or_default() += executed[number];
                if insn.transfer != Transfer::Next && number + 1 < block.insns.len() {
                    begins.insert(place(block, number + 1));
                }
            }
        }
        let mut found: HashMap<Place, BasicBlock> = HashMap::new();
        for (block, _) in self.blocks() {
            let starts = 0..block.insns.len();
            let starts = starts.filter(|&number| begins.contains(&place(block, number)));
            let starts: Vec<usize> = starts.collect();
            let ends = starts[1..].iter().copied().chain([block.insns.len()]);
            for (&first, end) in starts.iter().zip(ends) {
                let place = place(block, first);
                found.entry(place).or_insert_with(|| BasicBlock {
                    block: Arc::clone(block),
                    first,
                    instructions: end - first,
                    count: counts[&place],
                });
            }
        }
        let found = found.into_values();
        found.filter(|block| block.count > 0).collect()
    }

    fn add(&mut self, block: &Block, upto: usize, times: u64) {
        if let Some(Some((_, uptos))) = self.blocks.get_mut(block.id as usize) {
            uptos[upto] += times;
        }
    }
}

/// How often instructions were executed, from how often their first ones were, by number.
pub(crate) fn executions(uptos: &[u64]) -> Vec<u64> {
    let mut counts = uptos[1..].to_vec();
    for number in (1..counts.len()).rev() {
        counts[number - 1] += counts[number];
    }
    counts
}

fn place(block: &Block, number: usize) -> Place {
    let (first, pc) = (block.insns[0].pc, block.insns[number].pc);
    let offset = block.file.as_ref().map(|(_, offset)| offset + (pc - first));
    (pc, offset)
}

impl Client for Executions {
    fn block(&mut self, block: &Arc<Block>) {
        let number = block.id as usize;
        if self.blocks.len() <= number {
            self.blocks.resize(number + 1, None);
        }
        self.blocks[number] = Some((Arc::clone(block), vec![0; block.insns.len() + 1]));
    }

    fn executed(&mut self, _: u32, block: &Arc<Block>, upto: usize, _: &[Access]) {
        if self.observe == Observe::Accesses {
            self.add(block, upto, 1);
        }
    }

    fn counted(&mut self, _: u32, block: &Arc<Block>, upto: usize, times: u64) {
        self.add(block, upto, times);
    }
}
