//! What a tool has received so far, and what not.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};
use hodo_dbi::{
    Access, Accesses, Amount, Block, Client, Event, Events, Listener, Message, Observe,
};
use rustc_hash::FxHashMap;
use serde_json::Value;

use crate::heap::{self, Allocator};

/// What has been observed so far.
#[derive(Debug, Default)]
pub struct Counts {
    instructions: AtomicU64,
    accesses: AtomicU64,
    bytes: AtomicU64,
}

impl Counts {
    /// What is known of it after this many seconds, as text.
    #[must_use]
    pub fn text(&self, seconds: u64) -> String {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (instructions, accesses, bytes) =
            (of(&self.instructions), of(&self.accesses), of(&self.bytes));
        let mut text = String::new();
        if instructions > 0 {
            text += &format!("{} instructions, ", short(instructions));
        }
        if accesses > 0 {
            text += &format!("{} accesses", short(accesses));
            if let Some(rate) = accesses.checked_div(seconds) {
                text += &format!(" ({} a second)", short(rate));
            }
            text += ", ";
        }
        if bytes > 0 {
            text += &format!("{} MiB recorded, ", bytes >> 20);
        }
        text
    }
}

fn short(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..10_000_000 => format!("{} k", number / 1000),
        _ => format!("{} M", number / 1_000_000),
    }
}

/// How a program is observed.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    /// The program does not wait.
    pub lossy: bool,
    /// Lanes are recorded one by one.
    pub expand: bool,
    /// Functions that allocate memory, besides those that are known.
    pub allocators: Vec<Allocator>,
}

impl Watched {
    fn of_events(&self, events: Events) -> Events {
        let mut events = heap::also(events, self.allocators.clone());
        if self.lossy {
            events = events.lossy();
        }
        if self.expand {
            events = events.expanded();
        }
        events
    }
}

/// How many instructions a client has not received, because the program did not wait.
#[derive(Debug, Clone, Copy, Default)]
pub struct Missing(u64);

impl Missing {
    /// How many.
    #[must_use]
    pub fn instructions(self) -> u64 {
        self.0
    }

    /// Adds the number to a result, if it is not zero.
    #[must_use]
    pub fn note(self, mut result: Value) -> Value {
        if self.0 > 0 {
            result["missing_instructions"] = self.0.into();
        }
        result
    }
}

/// A client, and what it has received.
#[derive(Debug)]
pub struct Counted<C> {
    client: C,
    hears_all: bool,
    watched: Watched,
    lost: u64,
    counts: Arc<Counts>,
    /// The client receives blocks that begin with these instructions, counted in the order in which they come.
    wanted: Range<u64>,
    instructions: u64,
    accesses: u64,
    /// Of threads whose executions are counted: what they have done so far.
    working: FxHashMap<u32, [u64; 2]>,
}

impl<C> Counted<C> {
    /// Counts are shown if the client receives all executions, or progress.
    pub fn new(client: C, observe: Observe, watched: Watched, counts: &Arc<Counts>) -> Self {
        Self {
            client,
            hears_all: observe == Observe::Accesses,
            watched,
            lost: 0,
            counts: Arc::clone(counts),
            wanted: 0..u64::MAX,
            instructions: 0,
            accesses: 0,
            working: FxHashMap::default(),
        }
    }

    /// From here on, the client receives only this part of a recording.
    ///
    /// # Errors
    /// If it is one by time: recordings have none.
    pub fn choose(&mut self, from: Option<Amount>, length: Option<Amount>) -> Result<()> {
        let number = |amount: Option<Amount>, otherwise: u64| match amount {
            None => Ok(otherwise),
            Some(Amount::Instructions(number)) => Ok(number),
            Some(Amount::Time(_)) => bail!(
                "a recording has no times: write --from and --for as numbers of instructions (100M-insns)"
            ),
        };
        let from = number(from, 0)?;
        self.wanted = from..from.saturating_add(number(length, u64::MAX)?);
        Ok(())
    }

    /// Shows what has been received, and what threads have done that are at work.
    fn show(&self) {
        let [instructions, accesses] = [0, 1].map(|which| {
            let working = self.working.values();
            working.map(|counts| counts[which]).sum::<u64>()
        });
        // Nobody else writes.
        let counts = &self.counts;
        let instructions = self.instructions + instructions;
        counts.instructions.store(instructions, Ordering::Relaxed);
        let accesses = self.accesses + accesses;
        counts.accesses.store(accesses, Ordering::Relaxed);
    }

    /// This number of instructions with this number of accesses comes. Returns whether the client receives them.
    #[inline(always)]
    fn wants(&mut self, instructions: usize, accesses: usize) -> bool {
        if !self.hears_all {
            return true;
        }
        let is_wanted = self.wanted.contains(&self.instructions);
        self.instructions += instructions as u64;
        self.accesses += accesses as u64;
        // Nobody else writes.
        let counts = &self.counts;
        counts
            .instructions
            .store(self.instructions, Ordering::Relaxed);
        counts.accesses.store(self.accesses, Ordering::Relaxed);
        is_wanted
    }

    /// The client, and how much it has not received.
    pub fn into_client(self) -> (C, Missing) {
        (self.client, Missing(self.lost))
    }
}

impl<C: Client> Client for Counted<C> {
    fn thread(&mut self, thread: u32, process: i32, tid: i32) {
        self.client.thread(thread, process, tid);
    }

    fn block(&mut self, block: &Arc<Block>) {
        self.client.block(block);
    }

    fn block_again(&mut self, block: &Arc<Block>) {
        self.client.block_again(block);
    }

    fn events(&self) -> Events {
        self.watched.of_events(self.client.events())
    }

    fn event(&mut self, thread: u32, event: &Event<'_>) {
        if let Event::Lost { instructions } = event {
            self.lost += instructions;
        }
        self.client.event(thread, event);
    }

    #[inline]
    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        if self.wants(upto, accesses.len()) {
            self.client.executed(thread, block, upto, accesses);
        }
    }

    #[inline]
    fn visit(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: Accesses<'_>) {
        if self.wants(upto, accesses.len()) {
            self.client.visit(thread, block, upto, accesses);
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

    fn progress(&mut self, thread: u32, instructions: u64, accesses: u64) {
        self.working.insert(thread, [instructions, accesses]);
        self.show();
        self.client.progress(thread, instructions, accesses);
    }

    fn counted(&mut self, thread: u32, block: &Arc<Block>, upto: usize, times: u64) {
        // That is what it has done so far.
        if !self.working.is_empty() {
            self.working.remove(&thread);
        }
        self.instructions += upto as u64 * times;
        self.accesses += block.plain_accesses(upto).count() as u64 * times;
        self.client.counted(thread, block, upto, times);
    }

    fn has_enough(&self) -> bool {
        self.instructions >= self.wanted.end || self.client.has_enough()
    }

    fn end(&mut self) -> Result<()> {
        self.client.end()
    }
}

/// A listener, and how many bytes of records it has received.
#[derive(Debug)]
pub struct Weighed<L> {
    listener: L,
    watched: Watched,
    lost: u64,
    counts: Arc<Counts>,
}

impl<L> Weighed<L> {
    /// Adds the bytes to the counts.
    pub fn new(listener: L, watched: Watched, counts: &Arc<Counts>) -> Self {
        Self {
            listener,
            watched,
            lost: 0,
            counts: Arc::clone(counts),
        }
    }

    /// The listener, and how much it has not received.
    pub fn into_listener(self) -> (L, Missing) {
        (self.listener, Missing(self.lost))
    }
}

impl<L: Listener> Listener for Weighed<L> {
    fn hear(&mut self, message: &Message) -> Result<()> {
        match message {
            Message::Records { bytes, .. } => {
                let bytes = bytes.len() as u64;
                self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Message::Lost { instructions, .. } => self.lost += instructions,
            _ => {}
        }
        self.listener.hear(message)
    }

    fn events(&self) -> Events {
        self.watched.of_events(self.listener.events())
    }

    fn end(&mut self) -> Result<()> {
        self.listener.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_is_shown() {
        let counts = Counts::default();
        assert_eq!(counts.text(0), "");
        counts.instructions.store(12_345_678, Ordering::Relaxed);
        counts.accesses.store(9_999, Ordering::Relaxed);
        counts.bytes.store(5 << 20, Ordering::Relaxed);
        assert_eq!(
            counts.text(0),
            "12 M instructions, 9999 accesses, 5 MiB recorded, "
        );
        assert_eq!(
            counts.text(4),
            "12 M instructions, 9999 accesses (2499 a second), 5 MiB recorded, "
        );
    }

    struct Nothing;

    impl Client for Nothing {}

    #[test]
    fn threads_at_work_are_shown_until_they_are_counted() {
        let counts = Arc::default();
        let mut client = Counted::new(Nothing, Observe::Counts, Watched::default(), &counts);
        let insn = hodo_dbi::Insn {
            pc: 0,
            len: 1,
            transfer: hodo_dbi::Transfer::Next,
        };
        let block = Arc::new(Block::of_instruction(0, insn, &[0x90]));
        client.progress(1, 500, 7);
        client.progress(2, 300, 2);
        client.progress(1, 600, 8);
        assert_eq!(counts.text(0), "900 instructions, 10 accesses, ");
        client.counted(1, &block, 1, 650);
        client.progress(2, 400, 3);
        assert_eq!(counts.text(0), "1050 instructions, 3 accesses, ");
    }
}
