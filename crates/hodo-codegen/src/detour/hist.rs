//! Histograms: a hash table that all threads of all processes share, without locks.
//!
//! A slot consists of its tag, its hits, its sums, and its keys. A tag is 0 while the slot is free. While the keys are
//! written, it is their hash with 1 in the lowest bits; after that, the hash with 2. A thread that finds a slot whose
//! keys are being written does not wait, because it may be running a signal handler that has interrupted the writer. It
//! goes on to the next slot, so one combination of keys may have several slots. A reader adds them up.

use alloc::vec::Vec;

use super::STRING;
use super::condition::Test;
use super::text::Text;

/// Bytes of a table before its slots: the number of entries in use, hits for which there was no room, and hits whose
/// keys or values could not be read.
pub const HEAD: u64 = 64;

/// A histogram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// Offset of its table from the beginning of the events file.
    pub table: i64,
    /// Maximum number of entries.
    pub size: u32,
    /// The keys by which hits are distinguished.
    pub keys: Vec<Key>,
    /// The values that are summed up.
    pub sums: Vec<Test>,
}

/// A key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// A number.
    Number(Test, Part),
    /// A text: [`STRING`] bytes of a value, or 16 bytes of the thread's control block.
    Text(Text),
}

/// Which numbers are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Only equal ones.
    Each,
    /// Those with the same highest bit. The key is its number plus one, or 0 for 0.
    Log2,
    /// Ranges of this many consecutive values, signed or unsigned. The key is the lowest one of a range.
    Linear(u64, bool),
}

/// The sizes of the parts of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// Number of words of the keys.
    pub keys: usize,
    /// Number of words of the sums.
    pub sums: usize,
}

impl Key {
    /// The number of its words.
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

    /// The sizes of its parts.
    #[must_use]
    pub fn words(&self) -> Words {
        Words {
            keys: self.keys.iter().map(Key::words).sum(),
            sums: self.sums.len(),
        }
    }

    /// The number of slots in a table for this many entries: half of them stay free, so searches end soon.
    #[must_use]
    pub fn slots(size: u32) -> u64 {
        (u64::from(size) * 2).next_power_of_two()
    }

    /// Maximum size in bytes of a table for this many entries, for these numbers of keys and sums.
    #[must_use]
    pub fn most_bytes(size: u32, keys: usize, sums: usize) -> u64 {
        let words = Words {
            keys: keys * (STRING / 8),
            sums,
        };
        HEAD + Self::slots(size) * words.slot()
    }

    /// The size of its table in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        HEAD + Self::slots(self.size) * self.words().slot()
    }
}
