//! How often each instruction was executed.

use std::sync::Arc;

use hodo_dbi::{Access, Block, Client, Observe};

/// A block, how often all of it was executed, and how often its instructions were besides that.
type Counted = (Arc<Block>, u64, Vec<u64>);

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

    /// The blocks that were executed, how often from their beginning, and how often each of their instructions.
    pub fn blocks(&self) -> impl Iterator<Item = (&Arc<Block>, u64, Vec<u64>)> {
        let blocks = self.blocks.iter().flatten();
        let all = blocks.map(|(block, whole, parts)| {
            let counts = (0..block.insns.len()).map(|insn| {
                let part = parts.get(insn).copied().unwrap_or(0);
                whole + part
            });
            let counts: Vec<u64> = counts.collect();
            (block, counts.first().copied().unwrap_or(0), counts)
        });
        all.filter(|(_, begun, _)| *begun > 0)
    }

    fn add(&mut self, block: &Arc<Block>, upto: usize, times: u64) {
        let Some(Some((_, whole, parts))) = self.blocks.get_mut(block.id as usize) else {
            return;
        };
        if upto == block.insns.len() {
            *whole += times;
            return;
        }
        parts.resize(block.insns.len(), 0);
        for part in parts.iter_mut().take(upto) {
            *part += times;
        }
    }
}

impl Client for Executions {
    fn block(&mut self, block: &Arc<Block>) {
        let number = block.id as usize;
        if self.blocks.len() <= number {
            self.blocks.resize(number + 1, None);
        }
        self.blocks[number] = Some((Arc::clone(block), 0, Vec::new()));
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
