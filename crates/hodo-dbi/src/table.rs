//! The table through which returns, indirect calls and indirect jumps find their targets in the cache.
//!
//! An entry is the program's address and the address in the cache. A target is in the entry that its lowest bits select,
//! or in the next one. What is in neither is found by hodo.

use rustc_hash::FxHashMap;

/// The bits of an address that select an entry.
pub(crate) const MASK: u32 = (1 << 18) - 1;
/// The size of an entry as a power of two.
pub(crate) const SHIFT: u8 = 4;
/// Bytes of an entry.
pub(crate) const ENTRY: u32 = 1 << SHIFT;
/// Bytes of the table: the last entry has a next one, too.
pub(crate) const SIZE: u64 = ((MASK as u64 + 2) * ENTRY as u64).next_multiple_of(4096);

/// What the table of a process contains.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    /// The program's address in each entry that is in use.
    entries: FxHashMap<u32, u64>,
}

impl Table {
    /// Chooses the entry for an address. Returns the offset of the entry in the table, and whether it is in use.
    pub(crate) fn choose(&mut self, address: u64) -> (u64, bool) {
        let first = address as u32 & MASK;
        let is_free = |entry: &u32| self.entries.get(entry).is_none_or(|&old| old == address);
        // If both are taken, the older one gives way to the newer one in the second entry.
        let entry = [first, first + 1].into_iter().find(is_free);
        let entry = entry.unwrap_or(first + 1);
        let in_use = self.entries.insert(entry, address).is_some();
        (u64::from(entry) * u64::from(ENTRY), in_use)
    }

    /// Removes the addresses for which `gone` holds. Returns the offsets of their entries.
    pub(crate) fn remove(&mut self, gone: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut removed = Vec::new();
        self.entries.retain(|&entry, &mut address| {
            let stays = !gone(address);
            if !stays {
                removed.push(u64::from(entry) * u64::from(ENTRY));
            }
            stays
        });
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_two_places() {
        let mut table = Table::default();
        let other = 0x1000 + u64::from(MASK) + 1;
        assert_eq!(table.choose(0x1000), (0x1000 * 16, false));
        assert_eq!(table.choose(0x1000), (0x1000 * 16, true));
        assert_eq!(table.choose(other), (0x1001 * 16, false));
        assert_eq!(table.choose(2 * other - 0x1000), (0x1001 * 16, true));
        assert_eq!(table.remove(|address| address == 0x1000), [0x1000 * 16]);
        let last = u64::from(MASK);
        assert_eq!(table.choose(last), (last * 16, false));
        assert!(u64::from(MASK) * 16 + 32 <= SIZE);
    }
}
