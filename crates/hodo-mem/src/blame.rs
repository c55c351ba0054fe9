//! Whose accesses miss caches: by calls, and by memory.

use std::sync::Arc;

use anyhow::Result;
use hodo_dbi::{Access, Accesses, Block, Client, Event, Events};
use rustc_hash::FxHashMap;

use crate::cache::Simulator;
use crate::hot::{Hot, Object, What};
use crate::places::InFile;

/// A block in the calls in which it was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    context: u32,
    /// Its number.
    block: u32,
}

/// What is wanted besides the misses of each instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// Misses by the calls in which they happened.
    pub calls: bool,
    /// Misses by memory: variables, stacks, allocations.
    pub memory: bool,
}

impl Wanted {
    fn any(self) -> bool {
        self.calls || self.memory
    }
}

/// Simulates caches, and finds whose accesses miss them.
#[derive(Debug)]
pub struct Blame {
    simulator: Simulator,
    wanted: Wanted,
    /// Counts misses: of the first cache for data, and of the last one.
    memory: Hot,
    places: FxHashMap<Place, (Arc<Block>, u64)>,
}

/// Accesses of data that missed the first cache, in calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// The instructions that call, the outermost first, and then one of the code that missed. `None`: it is from no
    /// file.
    pub calls: Vec<Option<InFile>>,
    /// How many.
    pub misses: u64,
}

impl Blame {
    /// Takes a simulator that has not run yet. If it receives lines only, nothing else can be wanted.
    #[must_use]
    pub fn new(mut simulator: Simulator, wanted: Wanted) -> Self {
        if wanted.any() {
            simulator.keep_misses();
        }
        Self {
            simulator,
            wanted,
            memory: Hot::default(),
            places: FxHashMap::default(),
        }
    }

    /// The simulator.
    #[must_use]
    pub fn simulator(&self) -> &Simulator {
        &self.simulator
    }

    /// The memory whose accesses missed the first cache for data most, and how many missed the last one, too.
    #[must_use]
    pub fn memory(&self, callers: usize) -> Vec<Object> {
        let mut objects = self.memory.objects(callers);
        for object in &mut objects {
            if object.what == What::Written(None) {
                object.what = What::Other;
            }
        }
        objects.retain(|object| object.counts[0] > 0);
        objects.sort_by(|a, b| b.counts.cmp(&a.counts).then_with(|| a.what.cmp(&b.what)));
        objects
    }

    /// Misses by calls.
    pub fn stacks(&self) -> impl Iterator<Item = Stack> {
        let stacks = self.memory.stacks();
        self.places.iter().map(|(place, (block, misses))| {
            let mut calls = vec![InFile::of(block, 0)];
            calls.extend(stacks.calls(place.context));
            calls.reverse();
            Stack {
                calls,
                misses: *misses,
            }
        })
    }
}

impl Client for Blame {
    fn thread(&mut self, thread: u32, process: i32, tid: i32) {
        self.simulator.thread(thread, process, tid);
        self.memory.thread(thread, process, tid);
    }

    fn block(&mut self, block: &Arc<Block>) {
        self.simulator.block(block);
    }

    fn block_again(&mut self, block: &Arc<Block>) {
        self.simulator.block_again(block);
    }

    fn events(&self) -> Events {
        match self.wanted.memory {
            true => self.memory.events(),
            false => Client::events(&self.simulator),
        }
    }

    fn event(&mut self, thread: u32, event: &Event<'_>) {
        self.memory.event(thread, event);
    }

    #[inline]
    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        self.simulator.executed(thread, block, upto, accesses);
        if self.wanted.any() {
            self.find(thread, block, upto, accesses);
        }
    }

    #[inline]
    fn visit(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: Accesses<'_>) {
        match self.wanted.any() {
            true => self.executed(thread, block, upto, accesses.all()),
            false => self.simulator.visit(thread, block, upto, accesses),
        }
    }

    fn counted(&mut self, thread: u32, block: &Arc<Block>, upto: usize, times: u64) {
        self.simulator.counted(thread, block, upto, times);
    }

    #[inline]
    fn fetched(&mut self, thread: u32, block: &Arc<Block>, insn: usize) {
        self.simulator.fetched(thread, block, insn);
    }

    #[inline]
    fn accessed(&mut self, thread: u32, block: &Arc<Block>, access: &Access) {
        self.simulator.accessed(thread, block, access);
    }

    fn continues(&mut self, thread: u32) {
        self.simulator.continues(thread);
    }

    fn has_enough(&self) -> bool {
        self.simulator.has_enough()
    }

    fn end(&mut self) -> Result<()> {
        self.simulator.end()
    }
}

impl Blame {
    /// Finds whose the misses of a block are.
    #[inline(never)]
    fn find(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        let mut misses = 0;
        self.simulator.take_misses(|miss| {
            misses += 1;
            if self.wanted.memory {
                self.memory.count(thread, miss.address, 0);
                if miss.is_last {
                    self.memory.count(thread, miss.address, 1);
                }
            }
        });
        if misses > 0 && self.wanted.calls {
            let place = Place {
                context: self.memory.stacks().now(thread),
                block: block.id,
            };
            let new = || (Arc::clone(block), 0);
            self.places.entry(place).or_insert_with(new).1 += misses;
        }
        // A call itself misses in the caller.
        self.memory.follow(thread, block, upto, accesses);
    }
}
