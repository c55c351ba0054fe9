//! A model of caches in more detail: a second level, what levels have in common, dirty lines, and lines that are fetched
//! before they are accessed. It is slower than the usual one. If an access of two lines misses, only the lines that are not
//! there are looked for in the next level; the usual model, as cachegrind's, looks for both. There is no other difference.
//!
//! A line that is written becomes dirty in the first cache. If it gives way there, it is written to the next level, and
//! from the last one to memory. That does not count as a use of the line.

use rustc_hash::FxHashMap;

use crate::causes::{Causes, Finder};
use crate::model::{Caches, Extent, Geometry, Inclusion, MOST_LINES, Prefetch};
use crate::replacement::Sets;

/// How many strides must have been the same before a line is fetched because of that.
const SURE: u8 = 2;

/// What happened that misses do not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Events {
    /// Dirty lines that have left the first cache for data, the second one, and the last one. The last number is that of
    /// writes to memory: if lines are written past a cache that does not have them, they are among these.
    pub write_backs: [u64; 3],
    /// Lines that were fetched into the first cache for data before they were accessed.
    pub prefetched: u64,
    /// Of these, the ones that were accessed before they gave way.
    pub useful: u64,
    /// Lines that had to leave other caches because they left the last one.
    pub invalidated: u64,
}

/// How far an access had to go: 0 says that the first cache had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    First,
    Second,
    Last,
    Memory,
}

/// Whose line it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Instructions,
    Data,
    Second,
}

/// What is known of a line.
#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    is_dirty: bool,
    /// It was fetched, and not accessed since then.
    is_ahead: bool,
}

/// A cache whose lines have marks.
#[derive(Debug, Clone)]
struct Level {
    sets: Sets,
    ways: usize,
    marks: Vec<Marks>,
    /// The line of each set that was used last, as its tag, and its place. If it is used again, nothing changes but marks.
    recent: Vec<(u64, usize)>,
}

impl Level {
    fn new(geometry: Geometry, caches: &Caches) -> Self {
        let number = geometry.sets();
        let sets = Sets::new(caches.policy, number, geometry.ways as usize);
        Self {
            marks: vec![Marks::default(); sets.room()],
            sets,
            ways: geometry.ways as usize,
            recent: vec![(0, 0); number as usize],
        }
    }

    /// The marks of a line that is there.
    fn marks(&mut self, line: u64) -> Option<&mut Marks> {
        let set = self.sets.set(line);
        let place = self.sets.find(set, line + 1)?;
        Some(&mut self.marks[set * self.ways + place])
    }

    /// Uses a line, if it is there.
    #[inline]
    fn uses(&mut self, line: u64) -> Option<&mut Marks> {
        let set = self.sets.set(line);
        let place = match self.recent[set] {
            (tag, place) if tag == line + 1 => place,
            _ => {
                let place = self.sets.find(set, line + 1)?;
                self.sets.uses(set, place);
                self.recent[set] = (line + 1, place);
                place
            }
        };
        Some(&mut self.marks[set * self.ways + place])
    }

    /// Puts a line there that is not there yet. Returns the one that gives way.
    fn put(&mut self, line: u64, marks: Marks) -> Option<(u64, Marks)> {
        let set = self.sets.set(line);
        let (place, tag) = self.sets.replace(set, line + 1);
        self.recent[set] = (line + 1, place);
        let old = std::mem::replace(&mut self.marks[set * self.ways + place], marks);
        tag.checked_sub(1).map(|line| (line, old))
    }

    /// Takes a line away.
    fn take(&mut self, line: u64) -> Option<Marks> {
        let set = self.sets.set(line);
        let place = self.sets.find(set, line + 1)?;
        self.sets.remove(set, place);
        if self.recent[set].0 == line + 1 {
            self.recent[set] = (0, 0);
        }
        Some(std::mem::take(&mut self.marks[set * self.ways + place]))
    }
}

/// The addresses of an instruction.
#[derive(Debug, Clone, Copy, Default)]
struct Stride {
    last: u64,
    distance: u64,
    /// How often the distance was the same.
    same: u8,
}

/// The caches.
#[derive(Debug)]
pub(crate) struct Hierarchy {
    shift: u32,
    instructions: Level,
    data: Level,
    second: Option<Level>,
    last: Level,
    extent: Extent,
    /// By the address of the instruction.
    strides: FxHashMap<u64, Stride>,
    events: Events,
    finder: Option<Finder>,
}

impl Hierarchy {
    /// With empty caches, whose lines are equally long.
    pub(crate) fn new(caches: &Caches) -> Self {
        let data = Level::new(caches.data, caches);
        Self {
            shift: caches.data.line.trailing_zeros(),
            instructions: Level::new(caches.instructions, caches),
            second: caches.second.map(|second| Level::new(second, caches)),
            last: Level::new(caches.last, caches),
            extent: caches.extent,
            strides: FxHashMap::default(),
            events: Events::default(),
            finder: (caches.extent.causes).then(|| Finder::new(data.sets.room())),
            data,
        }
    }

    pub(crate) fn has_second(&self) -> bool {
        self.second.is_some()
    }

    pub(crate) fn events(&self) -> Events {
        self.events
    }

    pub(crate) fn causes(&self) -> Option<Causes> {
        self.finder.as_ref().map(Finder::causes)
    }

    /// An instruction is fetched.
    pub(crate) fn fetch(&mut self, address: u64, size: u32) -> Reach {
        let lines = self.lines(address, size);
        lines.fold(Reach::First, |reach, line| {
            reach.max(self.use_line(Which::Instructions, line, false))
        })
    }

    /// An instruction accesses data.
    pub(crate) fn access(&mut self, pc: u64, address: u64, size: u32, is_store: bool) -> Reach {
        let lines = self.lines(address, size);
        let mut reach = Reach::First;
        for line in lines {
            let own = self.use_line(Which::Data, line, is_store);
            if let Some(finder) = &mut self.finder {
                finder.access(line, own > Reach::First && reach == Reach::First);
            }
            reach = reach.max(own);
        }
        match self.extent.prefetch {
            Prefetch::None => {}
            Prefetch::NextLine if reach == Reach::First => {}
            Prefetch::NextLine => self.fetch_ahead((address >> self.shift).wrapping_add(1)),
            Prefetch::Stride => self.follow(pc, address),
        }
        reach
    }

    fn lines(&self, address: u64, size: u32) -> impl Iterator<Item = u64> + use<> {
        let last = address.saturating_add(u64::from(size.max(1)) - 1);
        (address >> self.shift..=last >> self.shift).take(MOST_LINES)
    }

    /// Fetches what an instruction will access, if its addresses have been equally far from each other.
    fn follow(&mut self, pc: u64, address: u64) {
        let stride = self.strides.entry(pc).or_default();
        let distance = address.wrapping_sub(stride.last);
        stride.same = match distance == stride.distance {
            true => stride.same.saturating_add(1),
            false => 0,
        };
        (stride.last, stride.distance) = (address, distance);
        let next = address.wrapping_add(distance) >> self.shift;
        if stride.same >= SURE && next != address >> self.shift {
            self.fetch_ahead(next);
        }
    }

    fn fetch_ahead(&mut self, line: u64) {
        // There are no addresses after these.
        if line > u64::MAX >> self.shift || self.data.marks(line).is_some() {
            return;
        }
        self.events.prefetched += 1;
        let (_, is_dirty) = self.beyond(line);
        let marks = Marks {
            is_dirty,
            is_ahead: true,
        };
        self.fill(Which::Data, line, marks);
    }

    fn first(&mut self, which: Which) -> &mut Level {
        match which {
            Which::Instructions => &mut self.instructions,
            _ => &mut self.data,
        }
    }

    fn use_line(&mut self, which: Which, line: u64, is_store: bool) -> Reach {
        if let Some(marks) = self.first(which).uses(line) {
            marks.is_dirty |= is_store;
            let was_ahead = std::mem::take(&mut marks.is_ahead);
            self.events.useful += u64::from(was_ahead);
            return Reach::First;
        }
        let (reach, is_dirty) = self.beyond(line);
        let marks = Marks {
            is_dirty: is_dirty || is_store,
            is_ahead: false,
        };
        self.fill(which, line, marks);
        reach
    }

    /// Uses a line that the first cache does not have. Returns how far that goes, and whether the line comes from the last
    /// cache as a dirty one, which does not keep it.
    fn beyond(&mut self, line: u64) -> (Reach, bool) {
        if let Some(second) = &mut self.second
            && second.uses(line).is_some()
        {
            return (Reach::Second, false);
        }
        let (reach, is_dirty) = match self.extent.inclusion {
            Inclusion::Exclusive => match self.last.take(line) {
                Some(marks) => (Reach::Last, marks.is_dirty),
                None => (Reach::Memory, false),
            },
            _ if self.last.uses(line).is_some() => (Reach::Last, false),
            _ => {
                self.fill_last(line, false);
                (Reach::Memory, false)
            }
        };
        if self.second.is_some() {
            self.fill(Which::Second, line, Marks::default());
        }
        (reach, is_dirty)
    }

    /// Puts a line into a cache that is not the last one.
    fn fill(&mut self, which: Which, line: u64, marks: Marks) {
        let gone = match (which, &mut self.second) {
            (Which::Second, Some(second)) => second.put(line, marks),
            _ => self.first(which).put(line, marks),
        };
        if let Some((line, marks)) = gone {
            match which {
                // Lines of instructions are dirty only if one that was written there has left the others before.
                Which::Instructions => {}
                Which::Data => self.events.write_backs[0] += u64::from(marks.is_dirty),
                Which::Second => self.events.write_backs[1] += u64::from(marks.is_dirty),
            }
            self.gave_way(line, marks.is_dirty);
        }
    }

    /// A line has left a cache that is not the last one.
    fn gave_way(&mut self, line: u64, is_dirty: bool) {
        let others = [
            self.second.as_mut().and_then(|second| second.marks(line)),
            self.data.marks(line),
            self.instructions.marks(line),
        ];
        if let Some(other) = others.into_iter().flatten().next() {
            other.is_dirty |= is_dirty;
        } else if self.extent.inclusion == Inclusion::Exclusive {
            self.fill_last(line, is_dirty);
        } else if is_dirty {
            match self.last.marks(line) {
                Some(marks) => marks.is_dirty = true,
                None => self.events.write_backs[2] += 1,
            }
        }
    }

    fn fill_last(&mut self, line: u64, is_dirty: bool) {
        let marks = Marks {
            is_dirty,
            is_ahead: false,
        };
        let Some((line, mut marks)) = self.last.put(line, marks) else {
            return;
        };
        if self.extent.inclusion == Inclusion::Inclusive {
            let levels = [Some(&mut self.instructions), Some(&mut self.data)];
            let levels = levels.into_iter().chain([self.second.as_mut()]);
            for taken in levels.flatten().filter_map(|level| level.take(line)) {
                marks.is_dirty |= taken.is_dirty;
                self.events.invalidated += 1;
            }
        }
        self.events.write_backs[2] += u64::from(marks.is_dirty);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replacement::Policy;

    fn caches(second: bool, extent: Extent) -> Caches {
        let geometry = |size, ways| Geometry {
            size,
            ways,
            line: 64,
        };
        Caches {
            instructions: geometry(512, 2),
            data: geometry(1024, 4),
            second: second.then(|| geometry(2048, 4)),
            last: geometry(4096, 8),
            policy: Policy::Lru,
            extent,
        }
    }

    fn random(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        *state >> 33
    }

    const LINES: u64 = 200;

    /// By level: whether it has a line, and whether that is dirty.
    fn state(caches: &mut Hierarchy, line: u64) -> [Option<bool>; 4] {
        let second = caches.second.as_mut();
        [
            caches.instructions.marks(line).map(|marks| marks.is_dirty),
            caches.data.marks(line).map(|marks| marks.is_dirty),
            second.and_then(|second| Some(second.marks(line)?.is_dirty)),
            caches.last.marks(line).map(|marks| marks.is_dirty),
        ]
    }

    #[test]
    fn what_is_written_is_dirty_until_it_is_in_memory() {
        for inclusion in [Inclusion::Any, Inclusion::Inclusive, Inclusion::Exclusive] {
            for (second, prefetch) in [(false, Prefetch::None), (true, Prefetch::NextLine)] {
                let extent = Extent {
                    inclusion,
                    prefetch,
                    write_backs: true,
                    causes: false,
                };
                let mut caches = Hierarchy::new(&caches(second, extent));
                let (mut seed, mut became_dirty) = (1, 0);
                let is_dirty = |state: [Option<bool>; 4]| state.contains(&Some(true));
                for _ in 0..20_000 {
                    // Some lines are accessed more often.
                    let line = random(&mut seed) % LINES * (random(&mut seed) % 100) / 100;
                    match random(&mut seed) % 4 {
                        0 => {
                            caches.fetch(line * 64, 4);
                        }
                        kind => {
                            let was_dirty = is_dirty(state(&mut caches, line));
                            let before = caches.events.write_backs[2];
                            caches.access(0, line * 64, 8, kind == 1);
                            if kind == 1 && !was_dirty {
                                became_dirty += 1;
                            }
                            assert!(caches.events.write_backs[2] - before <= 3);
                        }
                    }
                }
                let states: Vec<_> = (0..=LINES).map(|line| state(&mut caches, line)).collect();
                let dirty = states.iter().filter(|state| is_dirty(**state)).count() as u64;
                let Events {
                    write_backs,
                    invalidated,
                    ..
                } = caches.events();
                let later = write_backs[2] + dirty;
                match inclusion {
                    // A line may be dirty in the last cache and in another one, and is written twice then.
                    Inclusion::Any => {
                        assert!(
                            (became_dirty..became_dirty * 103 / 100).contains(&later),
                            "{became_dirty} {later}"
                        )
                    }
                    _ => assert_eq!(became_dirty, later),
                }
                assert!(write_backs[2] > 100 && dirty > 10, "{write_backs:?}");
                assert_eq!(invalidated > 0, inclusion == Inclusion::Inclusive);
                for [instructions, data, second, last] in states {
                    let inner = [instructions, data, second];
                    let is_inside = inner.iter().any(Option::is_some);
                    match inclusion {
                        Inclusion::Any => {}
                        Inclusion::Inclusive => assert!(!is_inside || last.is_some()),
                        Inclusion::Exclusive => assert!(!is_inside || last.is_none()),
                    }
                }
            }
        }
    }

    #[test]
    fn an_exclusive_cache_adds_its_room() {
        // 16 lines inside and 64 in the last cache: 80 lines in circles fit only if none is there twice.
        let misses = |inclusion| {
            let extent = Extent {
                inclusion,
                ..Extent::default()
            };
            let mut caches = Hierarchy::new(&caches(false, extent));
            let circles = (0..10).flat_map(|_| 0..80);
            let reach = circles.map(|line| caches.access(0, line * 64, 8, false));
            reach.filter(|&reach| reach == Reach::Memory).count()
        };
        assert_eq!(misses(Inclusion::Exclusive), 80);
        assert_eq!(misses(Inclusion::Any), 800);
    }

    #[test]
    fn equal_distances_are_followed() {
        let extent = Extent {
            prefetch: Prefetch::Stride,
            ..Extent::default()
        };
        let mut caches = Hierarchy::new(&caches(false, extent));
        let mut at = |pc, address| caches.access(pc, address, 8, false) == Reach::First;
        // Two instructions, upward and downward. The last ones are there before.
        let up: Vec<bool> = (0..8)
            .map(|number| at(1, 0x10_0000 + number * 200))
            .collect();
        let down = (0..8).map(|number| at(2, 0x20_0000 - number * 64));
        let expected = [false, false, false, false, true, true, true, true];
        assert_eq!(up, expected);
        assert_eq!(down.collect::<Vec<_>>(), expected);
        // Without a distance, nothing is fetched.
        let before = caches.events();
        assert_eq!((before.prefetched, before.useful), (10, 8));
        for address in [0x30_0000, 0x31_0000, 0x30_8000, 0x30_0040] {
            caches.access(3, address, 8, false);
        }
        assert_eq!(caches.events(), before);
    }

    #[test]
    fn the_last_addresses_there_are() {
        for prefetch in [Prefetch::NextLine, Prefetch::Stride] {
            let extent = Extent {
                prefetch,
                ..Extent::default()
            };
            let mut caches = Hierarchy::new(&caches(true, extent));
            for address in [u64::MAX - 128, u64::MAX - 64, u64::MAX, 63, 127, 191] {
                caches.access(0, address, u32::MAX, true);
            }
            assert!(caches.events().write_backs[2] > 0);
        }
    }
}
