//! The table through which returns, indirect calls and indirect jumps find their targets in the cache.
//!
//! An entry is the program's address and the address in the cache. A target is in the entry that its lowest bits
//! select, or in one of the next ones, up to the first that is empty. What is not there is found by hodo. Some bytes of
//! code share an entry: calls are as long or longer, and what belongs to the same code is in the same pages.
//!
//! Threads read the address of an entry, and then where it leads. So an entry is never given to another target while
//! there are threads that may be between the two: a target that is removed leaves its entry in use.

use std::rc::Rc;

/// The number of an entry at most, which is one less than a power of two.
pub(crate) const MASK: u32 = (1 << 18) - 1;
/// Bytes of an entry.
pub(crate) const ENTRY: u32 = 16;
/// Bytes of code that share an entry.
pub(crate) const SHARED: u32 = 4;
/// The maximum number of entries in which a target is looked for before it is put into another one.
const REACH: usize = 128;
/// Bytes of the table: after the last entry come those next to it, and at least one that stays empty.
pub(crate) const SIZE: u64 =
    ((MASK as u64 + 1 + REACH as u64) * ENTRY as u64).next_multiple_of(4096);
/// The maximum number of entries that are in use.
const MOST: usize = (MASK as usize + 1) / 4 * 3;
/// An address with this is none of a program: its target was removed.
const REMOVED: u64 = 1 << 63;

/// Bytes of a page of the table.
const PAGE: usize = 4096;

/// The addresses of an entry: the program's, or zero, and that in the cache.
type Entry = [u64; 2];
/// Entries of a page.
const ENTRIES: usize = PAGE / ENTRY as usize;
type Page = [Entry; ENTRIES];

/// What the table of a process contains, by page. A copy costs little until it is changed.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pages: Vec<Option<Rc<Page>>>,
    /// The number of entries that are in use.
    used: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            pages: vec![None; SIZE as usize / PAGE],
            used: 0,
        }
    }
}

impl Table {
    /// Puts a target into an entry. Returns the offset of the entry in the table. `None`: there is no room.
    pub(crate) fn put(&mut self, address: u64, at: u64) -> Option<u64> {
        let first = ((address / u64::from(SHARED)) as u32 & MASK) as usize;
        let is_fit = |found: u64| found == 0 || found & !REMOVED == address;
        let place = (first..first + REACH).find(|&place| is_fit(self.get(place)[0]))?;
        let is_new = self.get(place)[0] == 0;
        if is_new && self.used == MOST {
            return None;
        }
        self.used += usize::from(is_new);
        *self.entry(place) = [address, at];
        Some(place as u64 * u64::from(ENTRY))
    }

    /// Where a target leads that has an entry.
    pub(crate) fn leads(&self, address: u64) -> Option<u64> {
        let first = ((address / u64::from(SHARED)) as u32 & MASK) as usize;
        let entries = (first..first + REACH).map(|place| self.get(place));
        let mut entries = entries.take_while(|entry| entry[0] != 0);
        entries
            .find(|entry| entry[0] == address)
            .map(|entry| entry[1])
    }

    fn get(&self, number: usize) -> Entry {
        let page = self.pages[number / ENTRIES].as_ref();
        page.map_or([0; 2], |page| page[number % ENTRIES])
    }

    fn entry(&mut self, number: usize) -> &mut Entry {
        let (page, place) = (number / ENTRIES, number % ENTRIES);
        let new = || Rc::new([[0; 2]; ENTRIES]);
        &mut Rc::make_mut(self.pages[page].get_or_insert_with(new))[place]
    }

    /// The page that has the entry with this offset: its own offset, and its contents.
    pub(crate) fn page(&self, offset: u64) -> (u64, [u8; PAGE]) {
        let number = offset as usize / PAGE;
        let mut bytes = [0; PAGE];
        if let Some(page) = &self.pages[number] {
            for (place, word) in bytes.chunks_exact_mut(8).zip(page.as_flattened()) {
                place.copy_from_slice(&word.to_le_bytes());
            }
        }
        ((number * PAGE) as u64, bytes)
    }

    /// Removes the targets for which `gone` holds. Returns the offsets of their entries, and the addresses that are
    /// there from now on.
    pub(crate) fn remove(&mut self, gone: impl Fn(u64) -> bool) -> Vec<(u64, u64)> {
        let is_gone = |entry: &Entry| entry[0] != 0 && entry[0] & REMOVED == 0 && gone(entry[0]);
        let mut removed = Vec::new();
        for (number, page) in self.pages.iter_mut().enumerate() {
            let Some(page) = page.as_mut().filter(|page| page.iter().any(is_gone)) else {
                continue;
            };
            let entries = Rc::make_mut(page).iter_mut().enumerate();
            for (place, entry) in entries.filter(|(_, entry)| is_gone(entry)) {
                entry[0] |= REMOVED;
                let offset = number * PAGE + place * ENTRY as usize;
                removed.push((offset as u64, entry[0]));
            }
        }
        removed
    }

    /// Empties the table. Returns the offsets of the pages that have entries.
    pub(crate) fn clear(&mut self) -> Vec<u64> {
        self.used = 0;
        let pages = self.pages.iter_mut().enumerate();
        let used = pages.filter_map(|(number, page)| page.take().map(|_| (number * PAGE) as u64));
        used.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distance of addresses with the same entry.
    const OTHER: u64 = (MASK as u64 + 1) * 4;

    #[test]
    fn a_target_is_in_the_first_place_that_is_free() {
        let mut table = Table::default();
        assert_eq!(table.put(0x4000, 1), Some(0x1000 * 16));
        assert_eq!(table.put(0x4000, 2), Some(0x1000 * 16));
        assert_eq!(table.put(0x4000 + OTHER, 3), Some(0x1001 * 16));
        assert_eq!(table.put(0x4004, 4), Some(0x1002 * 16));
        assert_eq!(table.put(0x4003, 5), Some(0x1003 * 16));
        let (start, bytes) = table.page(0x1001 * 16);
        assert_eq!((start, bytes.len()), (0x1000 * 16, PAGE));
        let words = [0x4000, 2, 0x4000 + OTHER, 3, 0x4004, 4, 0x4003, 5, 0];
        assert_eq!(bytes[..72], words.map(u64::to_le_bytes).concat());
        let last = u64::from(MASK);
        assert_eq!(table.put(4 * last, 5), Some(last * 16));
        assert_eq!(table.put(4 * last + OTHER, 6), Some(last * 16 + 16));
    }

    #[test]
    fn no_other_target_gets_the_place_of_one_that_was_removed() {
        let mut table = Table::default();
        table.put(0x4000, 1);
        table.put(0x4000 + OTHER, 2);
        let removed = table.remove(|address| address == 0x4000);
        assert_eq!(removed, [(0x1000 * 16, REMOVED | 0x4000)]);
        assert_eq!(table.leads(0x4000), None);
        assert_eq!(table.leads(0x4000 + OTHER), Some(2));
        assert_eq!(table.leads(0x4000 + 2 * OTHER), None);
        assert_eq!(table.remove(|_| true).len(), 1);
        assert_eq!(table.put(0x4000 + 2 * OTHER, 3), Some(0x1002 * 16));
        assert_eq!(table.put(0x4000 + OTHER, 4), Some(0x1001 * 16));
        assert_eq!(table.put(0x4000, 5), Some(0x1000 * 16));
    }

    #[test]
    fn a_table_is_full_before_it_ends() {
        let mut table = Table::default();
        let many = (1..).map(|number| number * OTHER + 4 * u64::from(MASK));
        let put = many.map_while(|address| table.put(address, 1)).count();
        assert_eq!(put, REACH);
        let mut table = Table::default();
        let many = (1..).map(|number| 4 * number);
        let put = many.map_while(|address| table.put(address, 1)).count();
        assert_eq!(put, MOST);
        assert!(table.put(4 * 7, 2).is_some());
        assert_eq!(table.clear().len(), MOST / ENTRIES + 1);
        let next = MOST as u64 + 1;
        assert_eq!(table.put(4 * next, 1), Some(16 * next));
    }
}
