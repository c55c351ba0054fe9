//! Histograms: a hash table that all threads of all processes share, without locks.
//!
//! A slot is: its tag, its hits, its sums, its keys. A tag is 0 while the slot is free, then the keys' hash with 1 in
//! its lowest bits while the keys are written, then the hash with 2. Who finds a slot whose keys are being written does
//! not wait, for it may be a signal handler that has interrupted the writer: it goes on, and so one combination of keys
//! may have several slots. A reader adds them up.

use alloc::vec::Vec;

use super::STRING;
use super::condition::Test;
use super::text::Text;

/// Bytes of a table before its slots: entries in use, hits for which there was no room, hits whose keys or values could
/// not be read.
pub const HEAD: u64 = 64;

/// A histogram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// Its table, from the beginning of the events file.
    pub table: i64,
    /// Entries, at most.
    pub size: u32,
    /// By what hits are told apart.
    pub keys: Vec<Key>,
    /// What is summed up.
    pub sums: Vec<Test>,
}

/// A key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// A number.
    Number(Test, Part),
    /// A text: [`STRING`] bytes of a value, or 16 of the thread's control block.
    Text(Text),
}

/// Which numbers are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Each alone.
    Each,
    /// Those with the same highest bit. The key is its number plus one, or 0 for 0.
    Log2,
    /// This many values that follow each other, signed or unsigned. The key is the lowest of them.
    Linear(u64, bool),
}

/// How large the parts of a table are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// Words of the keys.
    pub keys: usize,
    /// Words of the sums.
    pub sums: usize,
}

impl Key {
    /// Its words.
    #[must_use]
    pub fn words(&self) -> usize {
        match self {
            Self::Number(..) => 1,
            Self::Text(Text::Thread(_)) => 2,
            Self::Text(_) => STRING / 8,
        }
    }
}

impl Words {
    /// Bytes of a slot.
    #[must_use]
    pub fn slot(self) -> u64 {
        (2 + self.sums + self.keys) as u64 * 8
    }
}

impl Histogram {
    /// The numbers that it computes.
    pub fn tests(&self) -> impl Iterator<Item = &Test> {
        let keys = self.keys.iter().filter_map(|key| match key {
            Key::Number(test, _) => Some(test),
            Key::Text(_) => None,
        });
        keys.chain(&self.sums)
    }

    /// How large its parts are.
    #[must_use]
    pub fn words(&self) -> Words {
        Words {
            keys: self.keys.iter().map(Key::words).sum(),
            sums: self.sums.len(),
        }
    }

    /// How many slots a table for this many entries has: half of them stay free, so looking for one ends soon.
    #[must_use]
    pub fn slots(size: u32) -> u64 {
        (u64::from(size) * 2).next_power_of_two()
    }

    /// Bytes of a table for this many entries, at most, where the numbers of keys and sums are known.
    #[must_use]
    pub fn most_bytes(size: u32, keys: usize, sums: usize) -> u64 {
        let words = Words {
            keys: keys * (STRING / 8),
            sums,
        };
        HEAD + Self::slots(size) * words.slot()
    }

    /// Bytes of its table.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        HEAD + Self::slots(self.size) * self.words().slot()
    }
}
