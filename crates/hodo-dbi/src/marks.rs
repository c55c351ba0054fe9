//! Marks of pages whose code may change.
//!
//! A mark is a word that each translation of code from the page looks at: it is zero while the program may execute the
//! page. Programs take this right and give it back often: around each change, if a page must never be writable and
//! executable. The translations stay: they compare the code that is there then with what they were made from.

use std::collections::BTreeMap;

use hodo_abi::Span;

const PAGE: u64 = 4096;
/// Bytes of a mark.
const SIZE: u64 = 4;
/// Bytes that are mapped for marks at once.
pub(crate) const ROOM: u64 = 64 << 10;

/// Marks by page.
#[derive(Debug, Clone, Default)]
pub(crate) struct Marks {
    marks: BTreeMap<u64, u32>,
    /// Room for others.
    free: Vec<Span>,
    /// All room that marks have.
    rooms: Vec<Span>,
}

impl Marks {
    /// Whether there is room for this many marks.
    pub(crate) fn has_room(&self, count: u64) -> bool {
        let free: u64 = self.free.iter().map(|span| span.len() / SIZE).sum();
        free >= count
    }

    /// Marks may be here, below 2 GiB. All words are zero.
    pub(crate) fn add_room(&mut self, span: Span) {
        self.free.push(span);
        self.rooms.push(span);
    }

    /// Where marks may be.
    pub(crate) fn rooms(&self) -> &[Span] {
        &self.rooms
    }

    /// The mark of the page of an address.
    ///
    /// # Panics
    /// If there is no room.
    pub(crate) fn of(&mut self, address: u64) -> u32 {
        let free = &mut self.free;
        *self.marks.entry(address & !(PAGE - 1)).or_insert_with(|| {
            free.retain(|span| !span.is_empty());
            let span = free.first_mut().expect("room for marks");
            let at = span.start as u32;
            *span = Span::from(span.start + SIZE..span.end);
            at
        })
    }

    /// The marks of the pages of a range: where they are, in groups that lie next to each other.
    pub(crate) fn within(&self, range: Span) -> Vec<Span> {
        let start = range.start & !(PAGE - 1);
        let mut groups: Vec<Span> = Vec::new();
        for &at in self
            .marks
            .range(start..range.end.max(start))
            .map(|(_, at)| at)
        {
            let mark = Span::at(at.into(), SIZE);
            match groups.last_mut() {
                Some(last) if last.end == mark.start => last.end = mark.end,
                _ => groups.push(mark),
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_has_a_mark() {
        let mut marks = Marks::default();
        assert!(!marks.has_room(1));
        marks.add_room(Span::at(0x1000, 8));
        marks.add_room(Span::at(0x3000, 8));
        assert!(marks.has_room(4) && !marks.has_room(5));
        let pages = [0x7000_0000, 0x7000_1FFF, 0x7000_0FFF, 0x7000_3000];
        let found = pages.map(|page| marks.of(page));
        assert_eq!(found, [0x1000, 0x1004, 0x1000, 0x3000]);
        let range = Span::from(0x7000_0800..0x7000_2000);
        assert_eq!(marks.within(range), [Span::at(0x1000, 8)]);
        assert_eq!(marks.within(Span::from(0x7000_1000..0x8000_0000)).len(), 2);
        assert_eq!(marks.within(Span::EMPTY), []);
    }
}
