//! Which line of a set gives way to a new one.

/// Which line of a set gives way to a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The one that was used the longest time ago.
    #[default]
    Lru,
    /// The one that has been there the longest time.
    Fifo,
    /// Any. The same one in each run.
    Random,
    /// The one to which a binary tree leads whose nodes point away from the half that was used last, as in many
    /// processors. The number of ways must be a power of two, at most 64.
    TreePlru,
}

/// Where a line was in its set. It may have given way since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place(u16);

impl Place {
    pub(crate) const NOWHERE: Self = Self(u16::MAX);
}

/// Lower halves of tags are compared this many at once: a vector of them.
const AT_ONCE: usize = 4;

/// The lines of all sets, and which of them give way. A line is known by a tag, which is not zero.
#[derive(Debug, Clone)]
pub(crate) struct Sets {
    policy: Policy,
    number: u64,
    /// If the number of sets is a power of two.
    mask: Option<u64>,
    ways: usize,
    /// The tags of each set. Zeros are free places.
    tags: Vec<u64>,
    /// The lower halves of these, with zeros up to a multiple of [`AT_ONCE`] after each set.
    halves: Vec<u32>,
    /// When each line was used last, or came: the lowest gives way. Only for [`Policy::Lru`] and [`Policy::Fifo`].
    times: Vec<u64>,
    now: u64,
    /// A tree for each set: the bit of a node says that the second half is to give way. The root is bit 1; after node N
    /// come 2 N and 2 N + 1.
    trees: Vec<u64>,
    random: u64,
}

impl Sets {
    pub(crate) fn new(policy: Policy, number: u64, ways: usize) -> Self {
        let sets = number as usize;
        let (times, trees) = match policy {
            Policy::Lru | Policy::Fifo => (sets * ways, 0),
            Policy::Random => (0, 0),
            Policy::TreePlru => (0, sets),
        };
        Self {
            policy,
            number,
            mask: number.is_power_of_two().then(|| number - 1),
            ways,
            tags: vec![0; sets * ways],
            halves: vec![0; sets * ways.next_multiple_of(AT_ONCE)],
            times: vec![0; times],
            now: 0,
            trees: vec![0; trees],
            random: 0x9E37_79B9_7F4A_7C15,
        }
    }

    /// For how many lines there is room.
    pub(crate) fn room(&self) -> usize {
        self.tags.len()
    }

    /// The set of a line.
    #[inline(always)]
    pub(crate) fn set(&self, line: u64) -> usize {
        let set = match self.mask {
            Some(mask) => line & mask,
            None => line % self.number,
        };
        set as usize
    }

    /// Uses a line of a set. Returns whether it was there.
    #[inline(always)]
    pub(crate) fn touch(&mut self, set: usize, tag: u64) -> bool {
        let Some(place) = self.find(set, tag) else {
            self.replace(set, tag);
            return false;
        };
        self.uses(set, place);
        true
    }

    /// Uses the line at a place.
    #[inline(always)]
    pub(crate) fn uses(&mut self, set: usize, place: usize) {
        if self.policy == Policy::Lru {
            self.now += 1;
            self.times[set * self.ways + place] = self.now;
        } else if let Some(tree) = self.trees.get_mut(set) {
            *tree = used(*tree, self.ways, place);
        }
    }

    /// Uses a line of a set if it is at this place. Returns whether it is.
    #[inline(always)]
    pub(crate) fn uses_at(&mut self, set: usize, place: Place, tag: u64) -> bool {
        let place = usize::from(place.0);
        let is_there = place < self.ways && self.tags[set * self.ways + place] == tag;
        if is_there {
            self.uses(set, place);
        }
        is_there
    }

    /// The place of a line, or none if it has none that can be kept.
    pub(crate) fn place(&self, set: usize, tag: u64) -> Place {
        let place = self.find(set, tag).and_then(|place| place.try_into().ok());
        place.map_or(Place::NOWHERE, Place)
    }

    /// Takes away the line at a place.
    pub(crate) fn remove(&mut self, set: usize, place: usize) {
        self.tags[set * self.ways + place] = 0;
        self.halves[set * self.ways.next_multiple_of(AT_ONCE) + place] = 0;
        if let Some(time) = self.times.get_mut(set * self.ways + place) {
            *time = 0;
        }
    }

    /// The place of a line in its set.
    #[inline(always)]
    pub(crate) fn find(&self, set: usize, tag: u64) -> Option<usize> {
        // Of the usual numbers of ways, the processor compares all at once.
        match self.ways {
            8 => return self.find_of::<8>(set, tag),
            12 => return self.find_of::<12>(set, tag),
            16 => return self.find_of::<16>(set, tag),
            _ => {}
        }
        let tags = &self.tags[set * self.ways..][..self.ways];
        if self.ways > 64 {
            return tags.iter().position(|&other| other == tag);
        }
        let padded = self.ways.next_multiple_of(AT_ONCE);
        let halves = &self.halves[set * padded..][..padded];
        let half = tag as u32;
        // The processor need not guess where the line is, and compares several at once.
        let mut equal = [0u32; AT_ONCE];
        let mut bit = 1;
        for some in halves.as_chunks::<AT_ONCE>().0 {
            for (equal, &other) in equal.iter_mut().zip(some) {
                *equal |= if other == half { bit } else { 0 };
            }
            bit <<= 1;
        }
        let [first, second, third, fourth] = equal;
        let mut equal = u64::from(first | second << 16) | u64::from(third | fourth << 16) << 32;
        while equal != 0 {
            let found = equal.trailing_zeros() as usize;
            let place = found % 16 * AT_ONCE + found / 16;
            if tags.get(place) == Some(&tag) {
                return Some(place);
            }
            equal &= equal - 1;
        }
        None
    }

    /// The same with a number of ways that is a multiple of [`AT_ONCE`].
    #[inline(always)]
    fn find_of<const WAYS: usize>(&self, set: usize, tag: u64) -> Option<usize> {
        let (halves, _) = self.halves.as_chunks::<WAYS>();
        let (tags, _) = self.tags.as_chunks::<WAYS>();
        let (halves, tags) = (&halves[set], &tags[set]);
        let half = tag as u32;
        let bit = |place: usize| {
            if halves[place] == half { 1 << place } else { 0 }
        };
        let bits: [u32; WAYS] = std::array::from_fn(bit);
        let mut equal = bits.iter().fold(0, |all, bit| all | bit);
        while equal != 0 {
            let place = equal.trailing_zeros() as usize % WAYS;
            if tags[place] == tag {
                return Some(place);
            }
            equal &= equal - 1;
        }
        None
    }

    /// Puts a line into its set. Returns its place and the tag of the line that has given way.
    #[inline(never)]
    pub(crate) fn replace(&mut self, set: usize, tag: u64) -> (usize, u64) {
        let start = set * self.ways;
        let place = match self.policy {
            Policy::Lru | Policy::Fifo => {
                // Free places have the time 0.
                let times = self.times[start..start + self.ways].iter();
                let oldest = times.zip(0..).min_by_key(|(time, _)| **time);
                oldest.map_or(0, |(_, place)| place)
            }
            Policy::Random | Policy::TreePlru => {
                let mut tags = self.tags[start..start + self.ways].iter();
                let free = tags.position(|&tag| tag == 0);
                free.unwrap_or_else(|| self.any(set))
            }
        };
        let old = std::mem::replace(&mut self.tags[start + place], tag);
        self.halves[set * self.ways.next_multiple_of(AT_ONCE) + place] = tag as u32;
        if let Some(time) = self.times.get_mut(start + place) {
            self.now += 1;
            *time = self.now;
        }
        if let Some(tree) = self.trees.get_mut(set) {
            *tree = used(*tree, self.ways, place);
        }
        (place, old)
    }

    /// The place that gives way in a full set, if times do not say it.
    fn any(&mut self, set: usize) -> usize {
        if let Some(&tree) = self.trees.get(set) {
            return victim(tree, self.ways);
        }
        // Xorshift (Marsaglia 2003).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % self.ways as u64) as usize
    }
}

/// The place to which a tree leads.
fn victim(tree: u64, ways: usize) -> usize {
    let mut node = 1;
    while node < ways {
        node = 2 * node + (tree >> node & 1) as usize;
    }
    node - ways
}

/// A tree after a place was used: its nodes lead away from that.
fn used(mut tree: u64, ways: usize, place: usize) -> u64 {
    let mut node = ways + place;
    while node > 1 {
        let is_second = node & 1 == 1;
        node /= 2;
        match is_second {
            true => tree &= !(1 << node),
            false => tree |= 1 << node,
        }
    }
    tree
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(policy: Policy, ways: usize, lines: &[u64]) -> (Vec<bool>, Vec<u64>) {
        let mut sets = Sets::new(policy, 1, ways);
        let hits = lines.iter().map(|&line| sets.touch(0, line));
        (hits.collect(), sets.tags)
    }

    #[test]
    fn known_sequences() {
        // Line 1 is used again before 5 comes: only a queue forgets it.
        let lines = [1, 2, 3, 4, 1, 5, 1];
        let hit_at_end = |policy| run(policy, 4, &lines).0[6];
        assert!(hit_at_end(Policy::Lru) && hit_at_end(Policy::TreePlru));
        assert!(!hit_at_end(Policy::Fifo));
        // The tree: after 1 2 3 4 and 1, the second half gives way, and there the line not used last: 3.
        let (_, set) = run(Policy::TreePlru, 4, &lines[..6]);
        assert_eq!(set, [1, 2, 5, 4]);
    }

    #[test]
    fn a_tree_does_what_a_recursive_one_does() {
        /// The half of the lines that was used last, and the trees of the halves.
        enum Slow {
            Line(u64),
            Halves(bool, Box<[Slow; 2]>),
        }
        impl Slow {
            fn of(ways: usize) -> Self {
                match ways {
                    1 => Self::Line(0),
                    _ => Self::Halves(true, Box::new([Self::of(ways / 2), Self::of(ways / 2)])),
                }
            }
            fn uses(&mut self, line: u64) -> bool {
                match self {
                    Self::Line(own) => *own == line,
                    Self::Halves(second, halves) => {
                        let used = (0..2).find(|&half| halves[half].uses(line));
                        *second = used.map_or(*second, |half| half == 1);
                        used.is_some()
                    }
                }
            }
            fn fills(&mut self, line: u64) -> bool {
                match self {
                    Self::Line(own) if *own == 0 => {
                        *own = line;
                        true
                    }
                    Self::Line(_) => false,
                    Self::Halves(_, halves) => halves[0].fills(line) || halves[1].fills(line),
                }
            }
            fn replaces(&mut self, line: u64) {
                match self {
                    Self::Line(own) => *own = line,
                    Self::Halves(second, halves) => halves[usize::from(!*second)].replaces(line),
                }
            }
        }
        for ways in [1, 2, 4, 8, 16, 64] {
            let mut fast = Sets::new(Policy::TreePlru, 1, ways);
            let mut slow = Slow::of(ways);
            let mut random = 1u64;
            for _ in 0..3000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let line = (random >> 33) % (2 * ways as u64) + 1;
                let hit = slow.uses(line);
                if !hit {
                    if !slow.fills(line) {
                        slow.replaces(line);
                    }
                    slow.uses(line);
                }
                assert_eq!(fast.touch(0, line), hit, "{ways} ways");
            }
        }
    }

    #[test]
    fn random_lines_are_the_same_in_each_run() {
        let lines: Vec<u64> = (0..500).map(|number| number * 7 % 11 + 1).collect();
        let (hits, set) = run(Policy::Random, 8, &lines);
        assert_eq!((hits.clone(), set.clone()), run(Policy::Random, 8, &lines));
        assert!(hits.iter().filter(|&&hit| hit).count() > 100);
        assert!(set.iter().all(|line| (1..=11).contains(line)));
    }

    #[test]
    fn lines_with_equal_lower_halves_are_different() {
        for policy in [Policy::Lru, Policy::Fifo, Policy::Random, Policy::TreePlru] {
            let lines = [1, 1 | 1 << 32, 1, 1 | 1 << 33, 1 << 32, 1 << 32, 1];
            let (hits, set) = run(policy, 4, &lines);
            assert_eq!(hits, [false, false, true, false, false, true, true]);
            assert_eq!(set, [1, 1 | 1 << 32, 1 | 1 << 33, 1 << 32]);
        }
    }

    #[test]
    fn lists_and_queues_do_what_slow_ones_do() {
        for (policy, ways) in [Policy::Lru, Policy::Fifo]
            .into_iter()
            .flat_map(|policy| [1, 3, 4, 12, 20, 64, 100].map(|ways| (policy, ways)))
        {
            let mut fast = Sets::new(policy, 1, ways);
            let mut slow: Vec<u64> = Vec::new();
            let (mut random, mut found) = (1u64, 0);
            for _ in 0..3000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let line = (random >> 33) % (2 * ways as u64) + 1;
                let place = slow.iter().position(|&other| other == line);
                if policy == Policy::Lru || place.is_none() {
                    place.map(|place| slow.remove(place));
                    slow.insert(0, line);
                    slow.truncate(ways);
                }
                assert_eq!(fast.touch(0, line), place.is_some(), "{policy:?} {ways}");
                found += u32::from(place.is_some());
            }
            assert!(found > 1000, "{policy:?} {ways}: {found}");
        }
    }
}
