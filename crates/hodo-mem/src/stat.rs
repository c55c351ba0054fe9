//! How many instructions were executed, and how much memory they accessed.

use std::sync::Arc;

use hodo_dbi::{Access, Block, Client, Kind, Observe};

/// Sums over all threads of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stat {
    /// Instructions. A repeated string instruction is one.
    pub instructions: u64,
    /// Accesses that read. A repeated string instruction makes one for each repetition.
    pub loads: u64,
    /// Accesses that write.
    pub stores: u64,
    /// Bytes that were read.
    pub load_bytes: u64,
    /// Bytes that were written.
    pub store_bytes: u64,
    /// Threads.
    pub threads: u64,
}

impl Stat {
    fn add(&mut self, kind: Kind, size: u32, times: u64) {
        let (accesses, bytes) = match kind {
            Kind::Load => (&mut self.loads, &mut self.load_bytes),
            Kind::Store => (&mut self.stores, &mut self.store_bytes),
        };
        *accesses += times;
        *bytes += u64::from(size) * times;
    }
}

/// Makes a [`Stat`] of counts, or of accesses.
#[derive(Debug)]
pub struct Counter {
    observe: Observe,
    stat: Stat,
}

impl Counter {
    /// `observe` is what it will be told.
    #[must_use]
    pub fn new(observe: Observe) -> Self {
        Self {
            observe,
            stat: Stat::default(),
        }
    }

    /// The sums.
    #[must_use]
    pub fn stat(&self) -> Stat {
        self.stat
    }
}

impl Client for Counter {
    fn thread(&mut self, _: u32, _: i32, _: i32) {
        self.stat.threads += 1;
    }

    fn executed(&mut self, _: u32, _: &Arc<Block>, upto: usize, accesses: &[Access]) {
        if self.observe == Observe::Accesses {
            self.stat.instructions += upto as u64;
        }
        for access in accesses {
            self.stat.add(access.kind, access.size, 1);
        }
    }

    fn counted(&mut self, _: u32, block: &Arc<Block>, upto: usize, times: u64) {
        self.stat.instructions += upto as u64 * times;
        for (kind, size) in block.plain_accesses(upto) {
            self.stat.add(kind, size, times);
        }
    }
}
