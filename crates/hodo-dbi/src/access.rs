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
    /// If a mask selects what is accessed of a vector register: where in the register its first byte comes from or goes
    /// to. Its other bytes are those after that one. 0 for all other accesses.
    pub offset: u8,
}
