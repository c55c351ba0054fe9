//! Accesses of memory.

use serde::{Deserialize, Serialize};

/// What an access does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Kind {
    /// It reads.
    Load,
    /// It writes.
    Store,
}

/// An access of memory. An instruction that reads and writes the same place makes two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Its lowest address.
    pub address: u64,
    /// Bytes.
    pub size: u32,
    /// The number of the instruction in its block.
    pub insn: u16,
    /// What it does.
    pub kind: Kind,
}
