//! How many instructions were executed, and how much memory they accessed.

use std::sync::Arc;

use hodo_dbi::{Access, Block, Client, Kind};

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

impl Client for Stat {
    fn thread(&mut self, _: u32, _: i32, _: i32) {
        self.threads += 1;
    }

    fn executed(&mut self, _: u32, _: &Arc<Block>, _: usize, accesses: &[Access]) {
        for access in accesses {
            self.add(access.kind, access.size, 1);
        }
    }

    fn counted(&mut self, _: u32, block: &Arc<Block>, upto: usize, times: u64) {
        self.instructions += upto as u64 * times;
        for (kind, size) in block.plain_accesses(upto) {
            self.add(kind, size, times);
        }
    }
}
