//! Why accesses miss a cache: the three causes of M. Hill, "Aspects of Cache Memory and Instruction Buffer Performance"
//! (1987), and what other processors write.

use rustc_hash::FxHashMap;

/// Misses by their causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Causes {
    /// The line was accessed for the first time.
    pub cold: u64,
    /// A cache of the same size that could keep any lines would not have had it, either.
    pub capacity: u64,
    /// Such a cache would have had it.
    pub conflict: u64,
    /// Another processor has written to the line.
    pub coherence: u64,
}

impl Causes {
    /// The sum.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            cold: self.cold + other.cold,
            capacity: self.capacity + other.capacity,
            conflict: self.conflict + other.conflict,
            coherence: self.coherence + other.coherence,
        }
    }
}

/// A line of the cache that can keep any lines.
#[derive(Debug, Clone, Copy)]
struct Line {
    number: u64,
    newer: usize,
    older: usize,
}

/// No line.
const NONE: usize = usize::MAX;

/// Finds the causes of misses. It has a cache of the same size with one set, which keeps the lines that were used last.
#[derive(Debug)]
pub(crate) struct Finder {
    causes: Causes,
    capacity: usize,
    /// All lines that were accessed, and where they are in the list, if they are in the cache.
    places: FxHashMap<u64, usize>,
    lines: Vec<Line>,
    newest: usize,
    oldest: usize,
}

impl Finder {
    /// `capacity`: the number of lines of the cache.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            causes: Causes::default(),
            capacity,
            places: FxHashMap::default(),
            lines: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }

    pub(crate) fn causes(&self) -> Causes {
        self.causes
    }

    /// A line is accessed. `missed`: the cache whose misses are explained did not have it. `was_taken`: because of
    /// another processor.
    pub(crate) fn access(&mut self, number: u64, missed: bool, was_taken: bool) {
        let newest = self.lines.get(self.newest);
        if !missed && newest.is_some_and(|line| line.number == number) {
            return;
        }
        let place = self.places.get(&number).copied();
        if missed {
            let cause = match place {
                _ if was_taken => &mut self.causes.coherence,
                None => &mut self.causes.cold,
                Some(NONE) => &mut self.causes.capacity,
                Some(_) => &mut self.causes.conflict,
            };
            *cause += 1;
        }
        match place {
            Some(place) if place != NONE => {
                self.take_out(place);
                self.put_first(place);
            }
            _ => self.add(number),
        }
    }

    fn add(&mut self, number: u64) {
        let place = if self.lines.len() < self.capacity {
            self.lines.push(Line {
                number,
                newer: NONE,
                older: NONE,
            });
            self.lines.len() - 1
        } else {
            let place = self.oldest;
            self.take_out(place);
            self.places.insert(self.lines[place].number, NONE);
            self.lines[place].number = number;
            place
        };
        self.places.insert(number, place);
        self.put_first(place);
    }

    fn take_out(&mut self, place: usize) {
        let Line { newer, older, .. } = self.lines[place];
        match newer {
            NONE => self.newest = older,
            newer => self.lines[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.lines[older].newer = newer,
        }
    }

    fn put_first(&mut self, place: usize) {
        let older = self.newest;
        self.lines[place].newer = NONE;
        self.lines[place].older = older;
        match older {
            NONE => self.oldest = place,
            older => self.lines[older].newer = place,
        }
        self.newest = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_those_of_a_slow_search() {
        for capacity in [1, 2, 5, 16] {
            let mut finder = Finder::new(capacity);
            let mut expected = Causes::default();
            let mut used: Vec<u64> = Vec::new();
            let mut random = 1u64;
            for _ in 0..4000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let line = (random >> 33) % (2 * capacity as u64 + 1);
                let missed = random >> 62 & 1 == 1;
                let position = used.iter().position(|&other| other == line);
                match position {
                    _ if !missed => {}
                    None => expected.cold += 1,
                    Some(older) if older >= capacity => expected.capacity += 1,
                    Some(_) => expected.conflict += 1,
                }
                used.retain(|&other| other != line);
                used.insert(0, line);
                finder.access(line, missed, false);
            }
            assert_eq!(finder.causes(), expected);
            assert!(expected.conflict > 100 && expected.capacity > 100);
        }
    }
}
