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

/// What a policy remembers besides the order of the lines.
#[derive(Debug, Clone)]
pub(crate) struct Replacement {
    policy: Policy,
    /// A tree for each set: the bit of a node says that the second half is to give way. The root is bit 1; after node N
    /// come 2 N and 2 N + 1.
    trees: Vec<u64>,
    random: u64,
}

impl Replacement {
    pub(crate) fn new(policy: Policy, sets: u64) -> Self {
        let trees = match policy {
            Policy::TreePlru => vec![0; sets as usize],
            _ => Vec::new(),
        };
        Self {
            policy,
            trees,
            random: 0x9E37_79B9_7F4A_7C15,
        }
    }

    /// Whether it matters that the first line of a set is used again.
    #[inline(always)]
    pub(crate) fn sees_all(&self) -> bool {
        !self.trees.is_empty()
    }

    /// Uses a line of a set, which is one of the lines if it is there. Returns whether it was. Zeros are free places.
    pub(crate) fn touch(&mut self, number: usize, set: &mut [u64], tag: u64) -> bool {
        if self.policy == Policy::Lru {
            return to_front(set, tag);
        }
        let found = set.iter().position(|&line| line == tag);
        if self.policy == Policy::Fifo {
            if found.is_none() {
                set.copy_within(..set.len() - 1, 1);
                set[0] = tag;
            }
            return found.is_some();
        }
        let free = || set.iter().position(|&line| line == 0);
        let place = found.or_else(free);
        let place = place.unwrap_or_else(|| match self.policy {
            Policy::TreePlru => victim(self.trees[number], set.len()),
            _ => {
                // Xorshift (Marsaglia 2003).
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                (self.random % set.len() as u64) as usize
            }
        });
        set[place] = tag;
        if let Some(tree) = self.trees.get_mut(number) {
            *tree = used(*tree, set.len(), place);
        }
        found.is_some()
    }
}

/// Makes a line the first one of a set. Returns whether it was there.
fn to_front(set: &mut [u64], tag: u64) -> bool {
    // Of usual sizes, the processor need not guess where the line is.
    if let Ok(set) = <&mut [u64; 8]>::try_from(&mut *set) {
        return to_front_of(set, tag);
    }
    if let Ok(set) = <&mut [u64; 16]>::try_from(&mut *set) {
        return to_front_of(set, tag);
    }
    let mut moved = std::mem::replace(&mut set[0], tag);
    if moved == tag {
        return true;
    }
    for place in &mut set[1..] {
        std::mem::swap(place, &mut moved);
        if moved == tag {
            return true;
        }
    }
    false
}

#[inline(always)]
fn to_front_of<const WAYS: usize>(set: &mut [u64; WAYS], tag: u64) -> bool {
    let mut moved = tag;
    let mut found = false;
    for place in set {
        let old = *place;
        *place = if found { old } else { moved };
        found |= old == tag;
        moved = old;
    }
    found
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
        let mut replacement = Replacement::new(policy, 1);
        let mut set = vec![0; ways];
        let hits = lines
            .iter()
            .map(|&line| replacement.touch(0, &mut set, line));
        (hits.collect(), set)
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
            let mut fast = Replacement::new(Policy::TreePlru, 1);
            let mut set = vec![0; ways];
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
                assert_eq!(fast.touch(0, &mut set, line), hit, "{ways} ways");
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
}
