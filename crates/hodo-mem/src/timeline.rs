//! What had happened at some times of a run.

use rustc_hash::FxHashMap;

use crate::model::MOST_LINES;

/// What had happened at some time of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sample {
    /// Instructions that all threads had executed.
    pub instructions: u64,
    /// Accesses of data that had missed the first cache.
    pub misses: u64,
    /// Of these, those that had missed the last cache, too.
    pub last_misses: u64,
    /// The working set: lines of data that had been accessed in the last part of the run, which has [`PART`]
    /// instructions. The first part may be shorter.
    pub part_lines: u64,
    /// Lines of data that had been accessed at all.
    pub all_lines: u64,
}

/// Instructions of a part of a run.
pub const PART: u64 = 1_000_000;

/// A timeline has at most this many samples.
const MOST_SAMPLES: usize = 512;

/// Samples that are equally far from each other.
#[derive(Debug)]
pub(crate) struct Timeline {
    samples: Vec<Sample>,
    /// Instructions so far, and those at the next sample.
    instructions: u64,
    next_sample: u64,
    /// Those at the next sample, or at the end of a part.
    next: u64,
    /// Instructions from one sample to the next.
    distance: u64,
    lines: Option<Lines>,
}

impl Timeline {
    pub(crate) fn new() -> Self {
        Self {
            samples: Vec::new(),
            instructions: 0,
            next_sample: 0,
            next: 0,
            distance: 1000,
            lines: None,
        }
    }

    /// Samples have lines from here on. `shift`: bytes of a line, as a power of two.
    pub(crate) fn keep_lines(&mut self, shift: u32) {
        self.lines = Some(Lines::new(shift));
    }

    /// The lines that are accessed, if they are wanted.
    #[inline]
    pub(crate) fn lines(&mut self) -> Option<&mut Lines> {
        self.lines.as_mut()
    }

    pub(crate) fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Instructions were executed. Returns whether it is time to call `pause`.
    #[inline]
    pub(crate) fn go_on(&mut self, instructions: u64) -> bool {
        self.instructions += instructions;
        self.instructions >= self.next
    }

    /// Adds a sample, if it is time. `misses`: of the first cache and of the last one, up to now.
    #[cold]
    pub(crate) fn pause(&mut self, misses: [u64; 2]) {
        let lines = match &mut self.lines {
            Some(lines) => lines.at(self.instructions),
            None => [0; 2],
        };
        if self.instructions >= self.next_sample {
            self.add(misses, lines);
        }
        self.next = self.next_sample;
        if self.lines.is_some() {
            self.next = self.next.min((self.instructions / PART + 1) * PART);
        }
    }

    /// Adds the last sample.
    pub(crate) fn end(&mut self, misses: [u64; 2]) {
        self.next_sample = self.instructions;
        self.pause(misses);
    }

    fn add(&mut self, [misses, last_misses]: [u64; 2], [part_lines, all_lines]: [u64; 2]) {
        self.samples.push(Sample {
            instructions: self.instructions,
            misses,
            last_misses,
            part_lines,
            all_lines,
        });
        if self.samples.len() >= MOST_SAMPLES {
            let mut number = 0;
            self.samples.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.distance *= 2;
        }
        self.next_sample = self.instructions + self.distance;
    }
}

/// Lines of data that are accessed.
#[derive(Debug)]
pub(crate) struct Lines {
    shift: u32,
    /// The part of the run in which each line was accessed last.
    parts: FxHashMap<u64, u64>,
    /// Some of them, each in a place by its number.
    recent: Vec<(u64, u64)>,
    part: u64,
    /// Lines of this part, and of the one before.
    now: u64,
    before: u64,
}

/// The number of recent lines.
const RECENT: usize = 4096;

impl Lines {
    fn new(shift: u32) -> Self {
        Self {
            shift,
            parts: FxHashMap::default(),
            recent: vec![(u64::MAX, 0); RECENT],
            part: 0,
            now: 0,
            before: 0,
        }
    }

    /// These bytes are accessed.
    #[inline]
    pub(crate) fn access(&mut self, address: u64, size: u32) {
        let last = address.saturating_add(u64::from(size.max(1)) - 1) >> self.shift;
        // A damaged trace may have accesses of any size.
        for line in (address >> self.shift..=last).take(MOST_LINES) {
            let place = &mut self.recent[line as usize % RECENT];
            if *place != (line, self.part) {
                *place = (line, self.part);
                if self.parts.insert(line, self.part) != Some(self.part) {
                    self.now += 1;
                }
            }
        }
    }

    /// The working set after this number of instructions, and all lines.
    fn at(&mut self, instructions: u64) -> [u64; 2] {
        let part = instructions / PART;
        if part != self.part {
            self.before = self.now;
            self.now = 0;
            self.part = part;
        }
        let part_lines = if self.part == 0 {
            self.now
        } else {
            self.before
        };
        [part_lines, self.parts.len() as u64]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_sets_are_those_of_whole_parts() {
        let mut timeline = Timeline::new();
        timeline.keep_lines(6);
        // In part P, lines up to 10 (P + 1) are accessed, each many times.
        let mut touched = 0;
        for instruction in 0..5 * PART / 10 {
            let part = instruction * 10 / PART;
            touched += 1;
            let lines = timeline.lines().expect("they are wanted");
            lines.access(touched % (10 * (part + 1)) * 64 + 60, 1);
            if timeline.go_on(10) {
                timeline.pause([instruction, instruction / 2]);
            }
        }
        timeline.end([0, 0]);
        let samples = timeline.samples();
        assert!(samples.len() > 100 && samples.len() < 512);
        for sample in samples {
            let part = sample.instructions / PART;
            if part > 0 {
                assert_eq!(sample.part_lines, 10 * part, "{sample:?}");
            }
            assert!(sample.all_lines >= sample.part_lines);
        }
        assert_eq!(samples.last().map(|sample| sample.all_lines), Some(50));
    }

    #[test]
    fn accesses_of_two_lines_are_of_both() {
        let mut lines = Lines::new(6);
        lines.access(60, 8);
        lines.access(64 * RECENT as u64, 1);
        lines.access(0, 1);
        lines.access(u64::MAX, 8);
        assert_eq!(lines.at(10), [4, 4]);
        assert_eq!(lines.at(PART), [4, 4]);
        lines.access(64, 0);
        assert_eq!(lines.at(2 * PART + 1), [1, 4]);
    }
}
