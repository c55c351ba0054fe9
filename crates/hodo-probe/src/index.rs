//! Maps addresses to what the engine knows of them, for signal handlers: without locks, and nothing is ever removed.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// A map from addresses, none of which is 0, to words.
pub(super) struct Index {
    table: AtomicPtr<Table>,
}

struct Table {
    /// A power of two of pairs, at most half of which are used.
    pairs: Vec<[AtomicU64; 2]>,
    used: AtomicU64,
}

impl Table {
    fn new(size: usize) -> Self {
        let pairs = (0..size)
            .map(|_| [const { AtomicU64::new(0) }; 2])
            .collect();
        Self {
            pairs,
            used: AtomicU64::new(0),
        }
    }

    /// The pair of a key, or the free pair where it belongs.
    fn place(&self, key: u64) -> &[AtomicU64; 2] {
        let mask = self.pairs.len() - 1;
        let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let mut at = hash as usize & mask;
        loop {
            let pair = &self.pairs[at];
            let found = pair[0].load(Ordering::Acquire);
            if found == key || found == 0 {
                return pair;
            }
            at = (at + 1) & mask;
        }
    }
}

impl Index {
    pub(super) const fn new() -> Self {
        Self {
            table: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    fn table(&self) -> Option<&Table> {
        // SAFETY: tables are never freed.
        unsafe { self.table.load(Ordering::Acquire).as_ref() }
    }

    /// The word stored under an address.
    pub(super) fn get(&self, key: u64) -> Option<u64> {
        let pair = self.table()?.place(key);
        (pair[0].load(Ordering::Acquire) == key).then(|| pair[1].load(Ordering::Acquire))
    }

    /// Stores a word under an address. Only one thread at a time may do so.
    pub(super) fn set(&self, key: u64, value: u64) {
        let full = self
            .table()
            .is_none_or(|table| table.used.load(Ordering::Relaxed) * 2 >= table.pairs.len() as u64);
        if full {
            let old = self.table();
            let bigger = Table::new(old.map_or(64, |old| old.pairs.len() * 2));
            for pair in old.map_or(&[][..], |old| &old.pairs) {
                let [key, value] = pair.each_ref().map(|word| word.load(Ordering::Relaxed));
                if key != 0 {
                    Self::put(&bigger, key, value);
                }
            }
            // A handler may still be reading the old one: it stays, and is smaller than the new one.
            self.table
                .store(Box::into_raw(Box::new(bigger)), Ordering::Release);
        }
        if let Some(table) = self.table() {
            Self::put(table, key, value);
        }
    }

    fn put(table: &Table, key: u64, value: u64) {
        let pair = table.place(key);
        pair[1].store(value, Ordering::Release);
        if pair[0].load(Ordering::Relaxed) == 0 {
            table.used.fetch_add(1, Ordering::Relaxed);
            pair[0].store(key, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_words_are_found() {
        let index = Index::new();
        assert_eq!(index.get(5), None);
        for key in 1..5000 {
            index.set(key * 16, key);
        }
        index.set(32, 77);
        assert_eq!(index.get(32), Some(77));
        for key in 3..5000 {
            assert_eq!(index.get(key * 16), Some(key));
        }
        assert_eq!(index.get(7), None);
    }
}
