//! Where our code can be: the free parts of our own mappings, and gaps between all mappings of a process.
//!
//! Everything that looks for executable memory uses this: islands, trampolines, the pieces of `hodo-probe`.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

use hodo_abi::Span;

/// One mapping, and its free parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    span: Span,
    /// Ascending; none is empty, and no two touch.
    free: Vec<Span>,
}

impl Room {
    /// A mapping whose first bytes, this many, are in use.
    #[must_use]
    pub fn new(span: Span, used: u64) -> Self {
        let free = Span::from(span.start + used.min(span.len())..span.end);
        let free = (!free.is_empty()).then_some(free);
        Self {
            span,
            free: free.into_iter().collect(),
        }
    }

    /// The whole mapping.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// How many bytes there are from the start to the end of the last part in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        let last = self.free.last().filter(|free| free.end == self.span.end);
        last.map_or(self.span.len(), |free| free.start - self.span.start)
    }

    /// The free parts, in ascending order.
    pub fn free(&self) -> impl Iterator<Item = Span> {
        self.free.iter().copied()
    }

    /// Whether all of this is free.
    #[must_use]
    pub fn is_free(&self, part: Span) -> bool {
        self.containing(part).is_some()
    }

    fn containing(&self, part: Span) -> Option<usize> {
        let next = self.free.partition_point(|free| free.start <= part.start);
        let index = next.checked_sub(1)?;
        (part.end <= self.free[index].end).then_some(index)
    }

    /// The first free place of this many bytes in a range.
    #[must_use]
    pub fn first(&self, within: Range<u64>, len: u64) -> Option<u64> {
        self.free.iter().find_map(|free| {
            let at = free.start.max(within.start);
            (at < within.end && at.checked_add(len)? <= free.end).then_some(at)
        })
    }

    /// Marks a part as used. Returns whether it was free.
    fn take(&mut self, part: Span) -> bool {
        let Some(index) = self.containing(part) else {
            return false;
        };
        let whole = self.free[index];
        let rest = [whole.start..part.start, part.end..whole.end];
        let rest = rest.into_iter().filter(|range| range.start < range.end);
        self.free.splice(index..=index, rest.map(Span::from));
        true
    }
}

/// Mappings that are used for the same purpose.
#[derive(Debug, Clone)]
pub struct Arena {
    /// By their starts.
    rooms: BTreeMap<u64, Room>,
    /// The maximum number of mappings: the kernel limits them.
    most: usize,
}

impl Arena {
    /// An arena without mappings, which will have at most this many.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self {
            rooms: BTreeMap::new(),
            most,
        }
    }

    /// Adds a mapping, if it is not known yet.
    pub fn add(&mut self, room: Room) {
        self.rooms.entry(room.span.start).or_insert(room);
    }

    /// Whether there are as many mappings as there may be.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.rooms.len() >= self.most
    }

    /// Whether a mapping begins there.
    #[must_use]
    pub fn begins(&self, at: u64) -> bool {
        self.rooms.contains_key(&at)
    }

    /// All mappings, in ascending order.
    pub fn rooms(&self) -> impl DoubleEndedIterator<Item = &Room> {
        self.rooms.values()
    }

    /// The mappings that begin in a range, in ascending order.
    pub fn starting_in(&self, range: Range<u64>) -> impl DoubleEndedIterator<Item = &Room> {
        self.rooms.range(range).map(|(_, room)| room)
    }

    /// Marks a part of a mapping as used. Returns whether it was free.
    pub fn take(&mut self, part: Span) -> bool {
        let room = self.rooms.range_mut(..=part.start).next_back();
        room.is_some_and(|(_, room)| room.take(part))
    }
}

/// The gaps between mappings, which are given in ascending order, within a range.
pub fn gaps(
    mappings: impl IntoIterator<Item = Span>,
    within: Range<u64>,
) -> impl Iterator<Item = Span> {
    let mut start = within.start;
    let end = Span::at(within.end, 0);
    let mappings = mappings.into_iter().chain([end]);
    mappings.filter_map(move |mapping| {
        let gap = start..mapping.start.min(within.end);
        start = start.max(mapping.end);
        (gap.start < gap.end).then(|| gap.into())
    })
}

/// The highest place for `size` bytes between mappings within a range, at a multiple of `align`.
pub fn highest_gap(
    mappings: impl IntoIterator<Item = Span>,
    within: Range<u64>,
    size: u64,
    align: u64,
) -> Option<u64> {
    let place = |gap: Span| {
        let start = gap.end.checked_sub(size)? & !(align - 1);
        (start >= gap.start).then_some(start)
    };
    gaps(mappings, within).filter_map(place).last()
}

/// The place for `size` bytes between mappings that is nearest to an address, of which no byte is `reach` or more away
/// from it. `guard` bytes below and above it are free, too: a stack above grows down towards it. It is in the part of
/// the addresses that Linux programs have.
pub fn nearest_gap(
    mappings: impl IntoIterator<Item = Span>,
    near: u64,
    size: u64,
    reach: u64,
    guard: u64,
) -> Option<u64> {
    const LOWEST: u64 = 0x1_0000;
    /// The kernel may map a page of its own above the stack.
    const HIGHEST: u64 = 0x7FFF_FFFE_0000;
    nearest_gap_within(mappings, LOWEST..HIGHEST, near, size, reach, guard)
}

/// The nearest gap within other addresses.
pub fn nearest_gap_within(
    mappings: impl IntoIterator<Item = Span>,
    within: Range<u64>,
    near: u64,
    size: u64,
    reach: u64,
    guard: u64,
) -> Option<u64> {
    let far = |place: u64| place.abs_diff(near).max((place + size).abs_diff(near));
    let place = |gap: Span| {
        let (low, high) = (gap.start + guard, gap.end.saturating_sub(guard));
        let (low, high) = (low.next_multiple_of(4096), high.checked_sub(size)? & !0xFFF);
        (low <= high).then(|| (near.saturating_sub(size) & !0xFFFF).clamp(low, high))
    };
    let places = gaps(mappings, within).filter_map(place);
    places
        .filter(|&place| far(place) < reach)
        .min_by_key(|&place| far(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span::from(start..end)
    }

    #[test]
    fn parts_are_used_once() {
        let mut room = Room::new(span(0x1000, 0x2000), 0x10);
        assert_eq!(room.used(), 0x10);
        assert!(!room.take(span(0xFFF, 0x1001)) && !room.take(span(0x1000, 0x1010)));
        assert!(room.take(span(0x1100, 0x1110)) && !room.take(span(0x110F, 0x1111)));
        assert_eq!(room.used(), 0x110);
        let free: Vec<_> = room.free().collect();
        assert_eq!(free, [span(0x1010, 0x1100), span(0x1110, 0x2000)]);
        assert!(room.take(span(0x1010, 0x1100)) && room.take(span(0x1110, 0x2000)));
        assert_eq!((room.free().count(), room.used()), (0, 0x1000));
        assert_eq!(Room::new(span(0, 16), 99).used(), 16);
    }

    #[test]
    fn the_first_place_is_in_the_range_and_has_room() {
        let mut room = Room::new(span(0x1000, 0x2000), 0);
        assert!(room.take(span(0x1008, 0x1010)));
        assert_eq!(room.first(0..u64::MAX, 8), Some(0x1000));
        assert_eq!(room.first(0..u64::MAX, 9), Some(0x1010));
        assert_eq!(room.first(0x1004..0x1010, 5), None);
        assert_eq!(room.first(0x1FF8..0x3000, 8), Some(0x1FF8));
        assert_eq!(room.first(0x1FF9..0x3000, 8), None);
    }

    #[test]
    fn an_arena_knows_its_rooms() {
        let mut arena = Arena::new(2);
        arena.add(Room::new(span(0x1000, 0x2000), 0));
        arena.add(Room::new(span(0x5000, 0x6000), 0));
        assert!(arena.is_full() && arena.begins(0x5000) && !arena.begins(0x2000));
        assert!(!arena.take(span(0, 4)) && !arena.take(span(0x2000, 0x2004)));
        assert!(arena.take(span(0x5FFC, 0x6000)) && !arena.take(span(0x5FFC, 0x6000)));
        // What is known already keeps what it knows.
        arena.add(Room::new(span(0x5000, 0x6000), 0));
        assert_eq!(arena.starting_in(0x4000..0x7000).count(), 1);
        assert!(arena.rooms().any(|room| room.used() == 0x1000));
    }

    #[test]
    fn gaps_are_between_mappings() {
        let maps = [span(0x40_0000, 0x48_0000), span(0x1000_0000, 0x2000_0000)];
        let between: Vec<_> = gaps(maps, 0x44_0000..0x3000_0000).collect();
        assert_eq!(
            between,
            [span(0x48_0000, 0x1000_0000), span(0x2000_0000, 0x3000_0000)]
        );
        assert_eq!(gaps(maps, 0x41_0000..0x42_0000).count(), 0);
        assert_eq!(gaps([], 1..3).collect::<Vec<_>>(), [span(1, 3)]);
        assert_eq!(
            highest_gap(maps, 0..0x48_0000, 0x1_0000, 0x1_0000),
            Some(0x3F_0000)
        );
        assert_eq!(
            highest_gap(maps, 0..0x48_0000, 0x20_0000, 0x1_0000),
            Some(0x20_0000)
        );
        assert_eq!(highest_gap(maps, 0..0x48_0000, 0x40_0001, 0x1_0000), None);
        let high = highest_gap(maps, 0..0x1000_0000, 0x1_0000, 0x1_0000);
        assert_eq!(high, Some(0xFFF_0000));
    }

    #[test]
    fn the_nearest_gap_keeps_its_distance() {
        let maps = [span(0x40_0000, 0x48_0000), span(0x1000_0000, 0x2000_0000)];
        // A kernel's addresses end at the end of all.
        let kernel = 0xFFFF_FFFF_8000_0000..u64::MAX;
        let text = kernel.start..kernel.start + 0x20_0000;
        let start = text.end;
        let maps_of_kernel = [text.into()];
        assert_eq!(nearest_gap(maps_of_kernel, start, 0x1000, 1 << 30, 0), None);
        assert_eq!(
            nearest_gap_within(maps_of_kernel, kernel, start, 0x1000, 1 << 30, 0),
            Some(start)
        );
        let near = nearest_gap(maps, 0x44_0000, 0x1_0000, 1 << 30, 0x1_0000);
        assert_eq!(near, Some(0x3E_0000));
        assert_eq!(nearest_gap(maps, 0x44_0000, 0x1_0000, 1 << 16, 0), None);
        assert_eq!(nearest_gap(maps, 0x44_0000, 1 << 48, 1 << 49, 0), None);
    }
}
