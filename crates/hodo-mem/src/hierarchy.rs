//! A model of caches in more detail: a second level, what levels have in common, dirty lines, lines that are fetched
//! before they are accessed, and several processors. It is slower than the usual one. If an access of two lines misses,
//! only the lines that are not there are looked for in the next level; the usual model, as cachegrind's, looks for
//! both. There is no other difference.
//!
//! A line that is written becomes dirty in the first cache. If it gives way there, it is written to the next level, and
//! from the last one to memory. That does not count as a use of the line.
//!
//! Each processor has caches of its own, but for the last one. A line of a processor's first cache for data has one of
//! the states of MESI: a dirty one that is not shared is modified, another one that is not shared is exclusive. Whoever
//! misses its first cache looks at all caches of the others.

use rustc_hash::FxHashMap;

use crate::causes::{Causes, Finder};
use crate::coherence::{Coherence, Sharing, Taken, bytes_of};
use crate::model::{Caches, Extent, Geometry, Inclusion, MOST_LINES, Prefetch};
use crate::replacement::Sets;
use crate::same::Same;

/// How many strides must have been the same before a line is fetched because of that.
const SURE: u8 = 2;

/// What happened that misses do not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Events {
    /// Dirty lines that have left the first cache for data, the second one, and the last one. The last number is that
    /// of writes to memory: if lines are written past a cache that does not have them, they are among these.
    pub write_backs: [u64; 3],
    /// Lines that were fetched into the first cache for data before they were accessed.
    pub prefetched: u64,
    /// Of these, the ones that were accessed before they gave way.
    pub useful: u64,
    /// Lines that had to leave other caches because they left the last one.
    pub invalidated: u64,
    /// What processors did to each other.
    pub coherence: Coherence,
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
    /// Other processors may have it, too. It matters only in the first cache for data, where lines are written.
    is_shared: bool,
    /// It may have been taken from other processors, which have not accessed it since.
    is_taken: bool,
}

/// A cache whose lines have marks.
#[derive(Debug, Clone)]
struct Level {
    sets: Sets,
    ways: usize,
    marks: Vec<Marks>,
    /// The line of each set that was used last, as its tag, and its place. If it is used again, nothing changes but
    /// marks.
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

/// The caches of a processor.
#[derive(Debug)]
struct Core {
    instructions: Level,
    data: Level,
    second: Option<Level>,
    /// By the address of the instruction.
    strides: FxHashMap<u64, Stride>,
    finder: Option<Finder>,
}

impl Core {
    fn new(caches: &Caches) -> Self {
        let data = Level::new(caches.data, caches);
        Self {
            instructions: Level::new(caches.instructions, caches),
            second: caches.second.map(|second| Level::new(second, caches)),
            strides: FxHashMap::default(),
            finder: (caches.extent.causes).then(|| Finder::new(data.sets.room())),
            data,
        }
    }

    fn first(&mut self, which: Which) -> &mut Level {
        match which {
            Which::Instructions => &mut self.instructions,
            _ => &mut self.data,
        }
    }

    fn levels(&mut self) -> impl Iterator<Item = &mut Level> {
        let first = [&mut self.instructions, &mut self.data];
        first.into_iter().chain(self.second.as_mut())
    }
}

/// The caches.
#[derive(Debug)]
pub(crate) struct Hierarchy {
    caches: Caches,
    shift: u32,
    cores: Vec<Core>,
    last: Level,
    extent: Extent,
    events: Events,
    /// The processor that accesses.
    core: usize,
    /// What is added to the numbers of its process's lines, if there are several processors.
    space: u64,
    /// By process.
    spaces: FxHashMap<i32, u64>,
    /// The thread that is on the processor.
    thread: Option<u32>,
    same: Same,
    taken: Taken,
}

/// How far an access had to go, and what it shares with other processors if it misses because of these.
pub(crate) type Went = (Reach, Option<Sharing>);

impl Hierarchy {
    /// With empty caches, whose lines are equally long.
    pub(crate) fn new(caches: &Caches) -> Self {
        Self {
            caches: *caches,
            shift: caches.data.line.trailing_zeros(),
            cores: vec![Core::new(caches)],
            last: Level::new(caches.last, caches),
            extent: caches.extent,
            events: Events::default(),
            core: 0,
            space: 0,
            spaces: FxHashMap::default(),
            thread: None,
            same: Same::default(),
            taken: Taken::default(),
        }
    }

    /// A thread has this number.
    pub(crate) fn add_thread(&mut self, thread: u32, process: i32, tid: i32) {
        self.same.add(thread, process, tid);
    }

    /// What comes next is done by this thread of this process. Threads are distributed over processors by their
    /// numbers.
    #[inline]
    pub(crate) fn turn_to(&mut self, thread: u32, process: i32) {
        if self.extent.cores > 1 && self.thread != Some(thread) {
            self.thread = Some(thread);
            self.core = (self.same.first(thread) % self.extent.cores) as usize;
            while self.cores.len() <= self.core {
                self.cores.push(Core::new(&self.caches));
            }
            let next = self.spaces.len() as u64;
            let space = *self.spaces.entry(process).or_insert(next);
            // Addresses have 47 bits, and lines 16 bytes or more.
            self.space = space << 44;
        }
    }

    pub(crate) fn has_second(&self) -> bool {
        self.caches.second.is_some()
    }

    pub(crate) fn events(&self) -> Events {
        self.events
    }

    pub(crate) fn causes(&self) -> Option<Causes> {
        let finders = self.cores.iter().filter_map(|core| core.finder.as_ref());
        finders.map(Finder::causes).reduce(Causes::plus)
    }

    /// An instruction is fetched.
    pub(crate) fn fetch(&mut self, address: u64, size: u32) -> Reach {
        let lines = self.lines(address, size);
        lines.fold(Reach::First, |reach, line| {
            reach.max(self.use_line(Which::Instructions, line, None).0)
        })
    }

    /// An instruction accesses data.
    pub(crate) fn access(&mut self, pc: u64, address: u64, size: u32, is_store: bool) -> Went {
        let lines = self.lines(address, size);
        let (mut reach, mut shared) = (Reach::First, None);
        for line in lines {
            let bytes = match self.extent.cores {
                0..2 => 0,
                _ => bytes_of(address, size, line, self.shift),
            };
            let (own, sharing) = self.use_line(Which::Data, line, Some((is_store, bytes)));
            let missed = own > Reach::First && reach == Reach::First;
            if let Some(finder) = &mut self.cores[self.core].finder {
                let line = line.wrapping_add(self.space);
                finder.access(line, missed, sharing.is_some());
            }
            reach = reach.max(own);
            shared = shared.max(sharing);
        }
        match self.extent.prefetch {
            Prefetch::None => {}
            Prefetch::NextLine if reach == Reach::First => {}
            Prefetch::NextLine => self.fetch_ahead((address >> self.shift).wrapping_add(1)),
            Prefetch::Stride => self.follow(pc, address),
        }
        (reach, shared)
    }

    fn lines(&self, address: u64, size: u32) -> impl Iterator<Item = u64> + use<> {
        let last = address.saturating_add(u64::from(size.max(1)) - 1);
        (address >> self.shift..=last >> self.shift).take(MOST_LINES)
    }

    /// Fetches what an instruction will access, if its addresses have been equally far from each other.
    fn follow(&mut self, pc: u64, address: u64) {
        let strides = &mut self.cores[self.core].strides;
        let stride = strides.entry(pc).or_default();
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
        let here = line.wrapping_add(self.space);
        if line > u64::MAX >> self.shift || self.cores[self.core].data.marks(here).is_some() {
            return;
        }
        self.events.prefetched += 1;
        let others = self.look_at_others(here, false);
        self.taken.give_back(here, self.core, 0);
        let (_, is_dirty) = self.beyond(here);
        let marks = Marks {
            is_dirty,
            is_ahead: true,
            is_shared: others,
            is_taken: self.taken.has(here),
        };
        self.fill(Which::Data, here, marks);
    }

    /// Uses a line. `data`: whether it is written, and which bytes are accessed.
    fn use_line(&mut self, which: Which, line: u64, data: Option<(bool, u128)>) -> Went {
        let line = line.wrapping_add(self.space);
        let (is_store, bytes) = data.unwrap_or((false, u128::MAX));
        let core = self.core;
        if let Some(marks) = self.cores[core].first(which).uses(line) {
            marks.is_dirty |= is_store;
            let was_ahead = std::mem::take(&mut marks.is_ahead);
            self.events.useful += u64::from(was_ahead);
            if is_store && (marks.is_shared || marks.is_taken) {
                self.write_to_shared(line, bytes);
            }
            return (Reach::First, None);
        }
        let is_supplied = self.look_at_others(line, is_store);
        let sharing = self.taken.give_back(line, core, bytes);
        if is_store {
            self.taken.write(line, core, bytes);
        }
        let (reach, is_dirty) = self.beyond(line);
        let marks = Marks {
            is_dirty: is_dirty || is_store,
            is_ahead: false,
            is_shared: is_supplied && !is_store,
            is_taken: self.taken.has(line),
        };
        self.fill(which, line, marks);
        match is_supplied {
            true => (reach.min(Reach::Last), sharing),
            false => (reach, sharing),
        }
    }

    /// A processor writes to a line of its first cache that others may have, too, or have had.
    fn write_to_shared(&mut self, line: u64, bytes: u128) {
        let core = self.core;
        let marks = self.cores[core].data.marks(line);
        let was_shared = marks.is_some_and(|marks| std::mem::take(&mut marks.is_shared));
        if was_shared && self.look_at_others(line, true) {
            self.events.coherence.upgrades += 1;
        }
        self.taken.write(line, core, bytes);
        let is_taken = self.taken.has(line);
        if let Some(marks) = self.cores[core].data.marks(line) {
            marks.is_taken = is_taken;
        }
    }

    /// A processor needs a line. Others that have it share it, or lose it if it `is_taken`. Returns whether there are
    /// any.
    fn look_at_others(&mut self, line: u64, is_taken: bool) -> bool {
        let mut has_any = false;
        let mut was_dirty = false;
        for (number, core) in self.cores.iter_mut().enumerate() {
            if number == self.core {
                continue;
            }
            let (mut has_it, mut is_dirty, mut was_first) = (false, false, false);
            for (place, level) in core.levels().enumerate() {
                let found = match is_taken {
                    true => level.take(line),
                    false => level.marks(line).map(|marks| {
                        let before = *marks;
                        (marks.is_dirty, marks.is_shared) = (false, true);
                        before
                    }),
                };
                if let Some(marks) = found {
                    has_it = true;
                    is_dirty |= marks.is_dirty;
                    was_first |= place < 2;
                }
            }
            has_any |= has_it;
            was_dirty |= is_dirty;
            if has_it && is_taken {
                self.events.coherence.invalidations += 1;
                if was_first {
                    self.taken.take(line, number);
                }
            }
        }
        if was_dirty {
            self.events.coherence.transfers += 1;
            if !is_taken {
                match self.last.marks(line) {
                    Some(marks) => marks.is_dirty = true,
                    None => self.events.write_backs[2] += 1,
                }
            }
        }
        has_any
    }

    /// Uses a line that the first cache does not have. Returns how far that goes, and whether the line comes from the
    /// last cache as a dirty one, which does not keep it.
    fn beyond(&mut self, line: u64) -> (Reach, bool) {
        if let Some(second) = &mut self.cores[self.core].second
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
        if self.has_second() {
            self.fill(Which::Second, line, Marks::default());
        }
        (reach, is_dirty)
    }

    /// Puts a line into a cache that is not the last one.
    fn fill(&mut self, which: Which, line: u64, marks: Marks) {
        let core = &mut self.cores[self.core];
        let gone = match (which, &mut core.second) {
            (Which::Second, Some(second)) => second.put(line, marks),
            _ => core.first(which).put(line, marks),
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
        let core = &mut self.cores[self.core];
        let own = [
            core.second.as_mut().and_then(|second| second.marks(line)),
            core.data.marks(line),
            core.instructions.marks(line),
        ];
        if let Some(other) = own.into_iter().flatten().next() {
            other.is_dirty |= is_dirty;
        } else if self.others_have(line) {
            // They are not dirty, so this one is not, either.
        } else if self.extent.inclusion == Inclusion::Exclusive {
            self.fill_last(line, is_dirty);
        } else if is_dirty {
            match self.last.marks(line) {
                Some(marks) => marks.is_dirty = true,
                None => self.events.write_backs[2] += 1,
            }
        }
    }

    fn others_have(&mut self, line: u64) -> bool {
        let others = self.cores.iter_mut().enumerate();
        let mut others = others.filter(|(number, _)| *number != self.core);
        others.any(|(_, core)| core.levels().any(|level| level.marks(line).is_some()))
    }

    fn fill_last(&mut self, line: u64, is_dirty: bool) {
        let marks = Marks {
            is_dirty,
            ..Marks::default()
        };
        let Some((line, mut marks)) = self.last.put(line, marks) else {
            return;
        };
        if self.extent.inclusion == Inclusion::Inclusive {
            let levels = self.cores.iter_mut().flat_map(Core::levels);
            for taken in levels.filter_map(|level| level.take(line)) {
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
        let core = &mut caches.cores[0];
        let second = core.second.as_mut();
        [
            core.instructions.marks(line).map(|marks| marks.is_dirty),
            core.data.marks(line).map(|marks| marks.is_dirty),
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
                    ..Extent::default()
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
            let reach = circles.map(|line| caches.access(0, line * 64, 8, false).0);
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
        let mut at = |pc, address| caches.access(pc, address, 8, false).0 == Reach::First;
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

    fn on_cores(inclusion: Inclusion, second: bool) -> Hierarchy {
        let extent = Extent {
            inclusion,
            cores: 3,
            ..Extent::default()
        };
        Hierarchy::new(&caches(second, extent))
    }

    #[test]
    fn processors_take_lines_from_each_other() {
        let mut caches = on_cores(Inclusion::Any, false);
        let mut at = |thread, process, address, is_store| {
            caches.turn_to(thread, process);
            caches.access(0, address, 8, is_store)
        };
        // Exclusive, shared by both, modified by the first one.
        assert_eq!(at(0, 1, 64, false), (Reach::Memory, None));
        assert_eq!(at(1, 1, 72, false), (Reach::Last, None));
        assert_eq!(at(0, 1, 64, true), (Reach::First, None));
        // The second one needs another word, and then that one.
        assert_eq!(at(1, 1, 72, false), (Reach::Last, Some(Sharing::False)));
        assert_eq!(at(0, 1, 64, true), (Reach::First, None));
        assert_eq!(at(1, 1, 64, false), (Reach::Last, Some(Sharing::True)));
        // It writes twice: what the first one finds changed is both.
        assert_eq!(at(1, 1, 72, true), (Reach::First, None));
        assert_eq!(at(1, 1, 80, true), (Reach::First, None));
        assert_eq!(at(0, 1, 80, true), (Reach::Last, Some(Sharing::True)));
        // The fourth thread is on the processor of the first one.
        assert_eq!(at(3, 1, 64, true), (Reach::First, None));
        // Another process has other memory.
        assert_eq!(at(1, 2, 64, true), (Reach::Memory, None));
        assert_eq!(at(0, 1, 64, true), (Reach::First, None));
        let coherence = caches.events().coherence;
        let expected = Coherence {
            invalidations: 4,
            upgrades: 3,
            transfers: 3,
        };
        assert_eq!(coherence, expected);
    }

    #[test]
    fn who_writes_is_alone() {
        for inclusion in [Inclusion::Any, Inclusion::Inclusive, Inclusion::Exclusive] {
            for second in [false, true] {
                let mut caches = on_cores(inclusion, second);
                let (mut seed, mut shared) = (1, [0, 0]);
                for _ in 0..20_000 {
                    let thread = (random(&mut seed) % 3) as u32;
                    let line = random(&mut seed) % 40;
                    caches.turn_to(thread, 1);
                    let word = random(&mut seed) % 8;
                    let (_, sharing) = match random(&mut seed) % 4 {
                        0 => (caches.fetch(line * 64, 4), None),
                        kind => caches.access(0, line * 64 + word * 8, 8, kind == 1),
                    };
                    if let Some(sharing) = sharing {
                        shared[usize::from(sharing == Sharing::True)] += 1;
                    }
                    check_states(&mut caches, line);
                }
                assert!(shared[0] > 500 && shared[1] > 100, "{shared:?}");
                let events = caches.events();
                assert!(events.coherence.invalidations >= shared[0] + shared[1]);
                assert!(events.coherence.transfers > 500 && events.coherence.upgrades > 500);
            }
        }
    }

    /// A modified or exclusive line is in the caches of one processor.
    fn check_states(caches: &mut Hierarchy, line: u64) {
        let holders = caches.cores.iter_mut().map(|core| {
            let is_alone = core.data.marks(line).map(|marks| !marks.is_shared);
            let found = core.levels().filter_map(|level| level.marks(line).copied());
            let found: Vec<Marks> = found.collect();
            let is_dirty = found.iter().any(|marks| marks.is_dirty);
            (!found.is_empty(), is_dirty || is_alone == Some(true))
        });
        let holders: Vec<(bool, bool)> = holders.filter(|(has_it, _)| *has_it).collect();
        let is_alone = holders.iter().any(|(_, is_alone)| *is_alone);
        assert!(!is_alone || holders.len() == 1, "{holders:?}");
    }
}
