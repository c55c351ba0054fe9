//! What caches of several processors do to each other: the states of MESI (Papamarcos and Patel, "A Low-Overhead
//! Coherence Solution for Multiprocessors with Private Cache Memories", 1984), and misses because of that.
//!
//! A processor that writes to a line takes it from the others. If one of these accesses it again, it misses its cache
//! because of that: the two share data if the bytes that it accesses were written since then, or else only the line
//! (Torrellas et al., "False Sharing and Spatial Locality in Multiprocessor Caches", 1994).

use rustc_hash::FxHashMap;

/// What processors did to each other's caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coherence {
    /// Lines that left the caches of a processor because another one wrote to them.
    pub invalidations: u64,
    /// Of the writes that took lines from others, those of processors that had the line, too.
    pub upgrades: u64,
    /// Modified lines that came from another processor's caches.
    pub transfers: u64,
}

/// Why an access to a line misses, which another processor has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sharing {
    /// Other bytes of the line were written.
    False,
    /// What it accesses was written.
    True,
}

/// Lines that were taken from processors, and have not been accessed by them since.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// By line: the processors, and the bytes that others have written since.
    lines: FxHashMap<u64, Vec<(usize, u128)>>,
}

impl Taken {
    /// A line was taken from a processor.
    pub(crate) fn take(&mut self, line: u64, core: usize) {
        let from = self.lines.entry(line).or_default();
        if from.iter().all(|(other, _)| *other != core) {
            from.push((core, 0));
        }
    }

    /// Whether there is a processor from which a line was taken.
    pub(crate) fn has(&self, line: u64) -> bool {
        self.lines.contains_key(&line)
    }

    /// A processor writes to these bytes of a line.
    pub(crate) fn write(&mut self, line: u64, core: usize, bytes: u128) {
        let from = self.lines.get_mut(&line).into_iter().flatten();
        for (_, written) in from.filter(|(other, _)| *other != core) {
            *written |= bytes;
        }
    }

    /// A processor gets a line into its cache, to access these bytes. Says what it shares with others if it was taken
    /// from it.
    pub(crate) fn give_back(&mut self, line: u64, core: usize, bytes: u128) -> Option<Sharing> {
        let from = self.lines.get_mut(&line)?;
        let place = from.iter().position(|(other, _)| *other == core)?;
        let (_, written) = from.swap_remove(place);
        if from.is_empty() {
            self.lines.remove(&line);
        }
        Some(match written & bytes {
            0 => Sharing::False,
            _ => Sharing::True,
        })
    }
}

/// The bytes of an access in a line: a bit for each, or for as many of them as make 128 parts of the line.
pub(crate) fn bytes_of(address: u64, size: u32, line: u64, shift: u32) -> u128 {
    let start = line << shift;
    let last = start + ((1 << shift) - 1);
    let first_byte = address.max(start) - start;
    let last_byte = address.saturating_add(u64::from(size.max(1)) - 1).min(last) - start;
    let part = shift.saturating_sub(7);
    let (first, last) = (first_byte >> part, last_byte >> part);
    (u128::MAX << first) & (u128::MAX >> (127 - last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_an_access() {
        assert_eq!(bytes_of(64, 1, 1, 6), 1);
        assert_eq!(bytes_of(66, 2, 1, 6), 0b1100);
        assert_eq!(bytes_of(60, 8, 0, 6), 0xF << 60);
        assert_eq!(bytes_of(60, 8, 1, 6), 0xF);
        assert_eq!(bytes_of(0, 4096, 0, 6), u128::from(u64::MAX));
        assert_eq!(bytes_of(0, 128, 0, 7), u128::MAX);
        // Two bytes share a bit.
        assert_eq!(bytes_of(2, 1, 0, 8), 0b10);
        assert_eq!(bytes_of(255, 1, 0, 8), 1 << 127);
        assert_eq!(bytes_of(u64::MAX, 8, u64::MAX >> 6, 6), 1 << 63);
    }

    #[test]
    fn what_others_write_is_what_is_shared() {
        let mut taken = Taken::default();
        taken.take(5, 0);
        taken.write(5, 1, 0xF0);
        assert_eq!(taken.give_back(5, 1, 1), None);
        assert_eq!(taken.give_back(5, 0, 0x0F), Some(Sharing::False));
        assert!(!taken.has(5));
        taken.take(5, 0);
        taken.take(5, 2);
        taken.write(5, 1, 1);
        taken.write(5, 0, 2);
        assert_eq!(taken.give_back(5, 0, 2), Some(Sharing::False));
        assert_eq!(taken.give_back(5, 2, 2), Some(Sharing::True));
    }
}
