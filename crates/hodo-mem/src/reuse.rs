//! Reuse distances: how many other lines were accessed since a line was accessed before.
//!
//! A cache that keeps as many lines as a distance, and replaces the one used the longest time ago, still has the line.

use std::collections::HashMap;
use std::sync::Arc;

use hodo_dbi::{Access, Block, Client};

/// A histogram of reuse distances of data, over all threads.
#[derive(Debug)]
pub struct Reuse {
    /// A line as a power of two.
    shift: u32,
    /// When each line was accessed last.
    last: HashMap<u64, u32>,
    /// A Fenwick tree over times: 1 where a line was accessed last.
    tree: Vec<u32>,
    now: u32,
    /// The line that was accessed last.
    same: Option<u64>,
    /// Lines that were accessed for the first time.
    first: u64,
    /// Accesses with distance 0, 1, 2 to 3, 4 to 7 …
    counts: Vec<u64>,
}

/// Times before the tree is made anew, at least.
const TIMES: usize = 1 << 20;

impl Reuse {
    /// `line` is a power of two: bytes.
    #[must_use]
    pub fn new(line: u32) -> Self {
        Self {
            shift: line.trailing_zeros(),
            last: HashMap::new(),
            tree: vec![0; TIMES],
            now: 0,
            same: None,
            first: 0,
            counts: vec![0; 34],
        }
    }

    /// Lines that were accessed for the first time.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The least distance and the greatest one, and how many accesses had such a distance.
    pub fn rows(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let counts = self.counts.iter().enumerate();
        let rows = counts.map(|(row, &count)| match row {
            0 => (0, 0, count),
            _ => (1 << (row - 1), (1 << row) - 1, count),
        });
        rows.filter(|row| row.2 > 0)
    }

    fn change(&mut self, time: u32, by: i32) {
        let mut at = time as usize + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add_signed(by);
            at += at & at.wrapping_neg();
        }
    }

    /// Lines that were accessed last at this time or before.
    fn upto(&self, time: u32) -> u32 {
        let (mut at, mut sum) = (time as usize + 1, 0);
        while at > 0 {
            sum += self.tree[at];
            at &= at - 1;
        }
        sum
    }

    /// Numbers the times anew, from 0.
    fn renumber(&mut self) {
        let mut lines: Vec<(u32, u64)> = self
            .last
            .iter()
            .map(|(&line, &time)| (time, line))
            .collect();
        lines.sort_unstable();
        self.tree = vec![0; (4 * lines.len()).next_power_of_two().max(TIMES)];
        self.now = 0;
        for (_, line) in lines {
            self.last.insert(line, self.now);
            self.change(self.now, 1);
            self.now += 1;
        }
    }

    fn touch(&mut self, line: u64) {
        if self.same.replace(line) == Some(line) {
            self.counts[0] += 1;
            return;
        }
        if self.now as usize + 2 >= self.tree.len() {
            self.renumber();
        }
        let now = self.now;
        self.now += 1;
        match self.last.insert(line, now) {
            None => self.first += 1,
            Some(before) => {
                let all = self.last.len() as u32;
                let distance = all - self.upto(before);
                self.counts[(u32::BITS - distance.leading_zeros()) as usize] += 1;
                self.change(before, -1);
            }
        }
        self.change(now, 1);
    }
}

impl Client for Reuse {
    fn executed(&mut self, _: u32, _: &Arc<Block>, _: usize, accesses: &[Access]) {
        for access in accesses {
            let first = access.address >> self.shift;
            let end = access
                .address
                .wrapping_add(u64::from(access.size.max(1)) - 1);
            self.touch(first);
            for line in first + 1..=end >> self.shift {
                self.touch(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_a_list() {
        let mut reuse = Reuse::new(64);
        let (mut list, mut random) = (Vec::new(), 7u64);
        let (mut first, mut counts) = (0, vec![0; 34]);
        for _ in 0..20_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let line = (random >> 40) % ((random >> 60) * 20 + 1);
            match list.iter().position(|&old| old == line) {
                None => first += 1,
                Some(distance) => {
                    list.remove(distance);
                    counts[(usize::BITS - distance.leading_zeros()) as usize] += 1;
                }
            }
            list.insert(0, line);
            reuse.touch(line);
            if random >> 50 == 3 {
                reuse.renumber();
            }
        }
        assert_eq!((reuse.first, &reuse.counts), (first, &counts));
        assert!(counts.iter().filter(|&&count| count > 0).count() > 5);
    }
}
