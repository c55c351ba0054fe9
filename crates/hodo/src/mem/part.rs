//! Only part of a recording is read.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, bail};
use hodo_dbi::{Access, Amount, Block, Client, Event, Events};

use crate::args::Part;

/// A client that hears only of some instructions: of blocks that begin with these, counted in the order in which a
/// recording has them.
#[derive(Debug)]
pub struct PartOf<C> {
    client: C,
    wanted: Range<u64>,
    /// Instructions so far.
    instructions: u64,
}

impl<C> PartOf<C> {
    /// It hears of everything.
    pub fn whole(client: C) -> Self {
        Self {
            client,
            wanted: 0..u64::MAX,
            instructions: 0,
        }
    }

    /// From here on, it hears only of this part.
    ///
    /// # Errors
    /// If it is one by time: recordings have none.
    pub fn choose(&mut self, part: &Part) -> Result<()> {
        let number = |amount: Option<Amount>, otherwise: u64| match amount {
            None => Ok(otherwise),
            Some(Amount::Instructions(number)) => Ok(number),
            Some(Amount::Time(_)) => bail!(
                "a recording has no times: write --from and --for as numbers of instructions (100M-insns)"
            ),
        };
        let from = number(part.from, 0)?;
        self.wanted = from..from.saturating_add(number(part.length, u64::MAX)?);
        Ok(())
    }

    /// The client.
    pub fn into_client(self) -> C {
        self.client
    }
}

impl<C: Client> Client for PartOf<C> {
    fn thread(&mut self, thread: u32, process: i32, tid: i32) {
        self.client.thread(thread, process, tid);
    }

    fn block(&mut self, block: &Arc<Block>) {
        self.client.block(block);
    }

    fn events(&self) -> Events {
        self.client.events()
    }

    fn event(&mut self, thread: u32, event: &Event<'_>) {
        self.client.event(thread, event);
    }

    #[inline]
    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        let first = self.instructions;
        self.instructions += upto as u64;
        if self.wanted.contains(&first) {
            self.client.executed(thread, block, upto, accesses);
        }
    }

    #[inline]
    fn fetched(&mut self, thread: u32, block: &Arc<Block>, insn: usize) {
        self.client.fetched(thread, block, insn);
    }

    #[inline]
    fn accessed(&mut self, thread: u32, block: &Arc<Block>, access: &Access) {
        self.client.accessed(thread, block, access);
    }

    fn continues(&mut self, thread: u32) {
        self.client.continues(thread);
    }

    fn counted(&mut self, thread: u32, block: &Arc<Block>, upto: usize, times: u64) {
        self.client.counted(thread, block, upto, times);
    }

    fn progress(&mut self, thread: u32, instructions: u64, accesses: u64) {
        self.client.progress(thread, instructions, accesses);
    }

    fn has_enough(&self) -> bool {
        self.instructions >= self.wanted.end || self.client.has_enough()
    }

    fn end(&mut self) -> Result<()> {
        self.client.end()
    }
}
