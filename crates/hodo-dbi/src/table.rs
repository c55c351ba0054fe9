//! The table through which returns, indirect calls and indirect jumps find their targets in the cache.
//!
//! An entry is the program's address and the address in the cache. A target is in the entry that its lowest bits select,
//! or in the next one. What is in neither is found by hodo.

use std::rc::Rc;

/// The bits of an address that select an entry.
pub(crate) const MASK: u32 = (1 << 18) - 1;
/// The size of an entry as a power of two.
pub(crate) const SHIFT: u8 = 4;
/// Bytes of an entry.
pub(crate) const ENTRY: u32 = 1 << SHIFT;
/// Bytes of the table: the last entry has a next one, too.
pub(crate) const SIZE: u64 = ((MASK as u64 + 2) * ENTRY as u64).next_multiple_of(4096);

/// Bytes of a page of the table.
const PAGE: usize = 4096;

/// The addresses of an entry: the program's, or zero, and that in the cache.
type Entry = [u64; 2];
/// Entries of a page.
const ENTRIES: usize = PAGE / ENTRY as usize;
type Page = [Entry; ENTRIES];

/// What the table of a process contains, by page. A copy costs little until it is changed.
#[derive(Debug, Clone)]
pub(crate) struct Table(Vec<Option<Rc<Page>>>);

impl Default for Table {
    fn default() -> Self {
        Self(vec![None; SIZE as usize / PAGE])
    }
}

impl Table {
    /// Puts a target into an entry. Returns the offset of the entry in the table, and whether it was in use.
    pub(crate) fn put(&mut self, address: u64, at: u64) -> (u64, bool) {
        let first = address as usize & MASK as usize;
        // If both are taken, the older one gives way to the newer one in the second entry.
        let place = match self.entry(first)[0] {
            old if old == 0 || old == address => first,
            _ => first + 1,
        };
        let entry = self.entry(place);
        let in_use = entry[0] != 0;
        *entry = [address, at];
        (place as u64 * u64::from(ENTRY), in_use)
    }

    fn entry(&mut self, number: usize) -> &mut Entry {
        let (page, place) = (number / ENTRIES, number % ENTRIES);
        let new = || Rc::new([[0; 2]; ENTRIES]);
        &mut Rc::make_mut(self.0[page].get_or_insert_with(new))[place]
    }

    /// The page that has the entry with this offset: its own offset, and its contents.
    pub(crate) fn page(&self, offset: u64) -> (u64, Vec<u8>) {
        let number = offset as usize / PAGE;
        let words = self.0[number].iter().flat_map(|page| page.as_flattened());
        let bytes = words.flat_map(|word| word.to_le_bytes()).collect();
        ((number * PAGE) as u64, bytes)
    }

    /// Removes the addresses for which `gone` holds. Returns the offsets of their entries.
    pub(crate) fn remove(&mut self, gone: impl Fn(u64) -> bool) -> Vec<u64> {
        let is_gone = |entry: &Entry| entry[0] != 0 && gone(entry[0]);
        let mut removed = Vec::new();
        for (number, page) in self.0.iter_mut().enumerate() {
            let Some(page) = page.as_mut().filter(|page| page.iter().any(is_gone)) else {
                continue;
            };
            let entries = Rc::make_mut(page).iter_mut().enumerate();
            for (place, entry) in entries.filter(|(_, entry)| is_gone(entry)) {
                entry[0] = 0;
                removed.push((number * PAGE + place * ENTRY as usize) as u64);
            }
        }
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
        assert_eq!(table.put(0x1000, 1), (0x1000 * 16, false));
        assert_eq!(table.put(0x1000, 2), (0x1000 * 16, true));
        assert_eq!(table.put(other, 3), (0x1001 * 16, false));
        assert_eq!(table.put(2 * other - 0x1000, 4), (0x1001 * 16, true));
        let (start, bytes) = table.page(0x1001 * 16);
        assert_eq!((start, bytes.len()), (0x1000 * 16, PAGE));
        let words = [0x1000, 2, 2 * other - 0x1000, 4, 0];
        assert_eq!(bytes[..40], words.map(u64::to_le_bytes).concat());
        assert_eq!(table.remove(|address| address == 0x1000), [0x1000 * 16]);
        let last = u64::from(MASK);
        assert_eq!(table.put(last, 5), (last * 16, false));
        assert_eq!(table.put(last + other - 0x1000, 6), (last * 16 + 16, false));
        assert!(u64::from(MASK) * 16 + 32 <= SIZE);
    }
}
