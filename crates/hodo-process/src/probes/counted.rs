//! What the counters count.
//!
//! Instructions of which each is executed whenever the one before it is share a counter: a hit is counted at the first of them.
//! Where a fault or a signal ends such a run in between, and the program does not come back to that place, those behind
//! it have one hit less, which the tracer tells ([`Counts::leave`]).

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use hodo_arch::native::detour::Counter;
use hodo_trace::format::{counters, tcb};
use serde::Serialize;

use super::Spot;

/// One of `counts.json`.
#[derive(Debug, Serialize)]
pub struct Line<'c> {
    pub addr: u64,
    pub group: &'c str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hits: Option<u64>,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nmissed: Option<u64>,
    pub offset: u64,
    pub path: &'c str,
    pub symbol: &'c str,
}

/// A place and what is counted there.
#[derive(Debug, Clone)]
pub struct Counted {
    /// Index of the definition.
    pub definition: usize,
    /// The function.
    pub symbol: Rc<str>,
    /// The place's distance from the function's beginning.
    pub offset: u64,
    /// Link-time address.
    pub addr: u64,
    /// The file.
    pub path: Rc<str>,
    /// It counts what a return probe misses, not the hits of a probe.
    pub missed: bool,
    /// The number of the counter.
    counter: u32,
    /// Link-time address of the instruction at which the counter counts.
    leader: u64,
}

/// All that is counted.
#[derive(Debug, Default)]
pub struct Counts {
    all: Vec<Counted>,
    /// Counters in use.
    counters: u32,
    /// By index in `all`, what has to be added to the hits.
    corrections: HashMap<usize, i64>,
}

impl Counts {
    /// Something more is counted, by a counter of its own, whose number is returned.
    pub(super) fn add(&mut self, spot: &Spot, addr: u64, path: &Path, missed: bool) -> u32 {
        let counter = self.counters;
        self.counters += 1;
        self.push(spot, addr, path, missed, (counter, addr));
        counter
    }

    /// Something more is counted, by the counter of another place: its number and that place.
    pub(super) fn join(&mut self, spot: &Spot, addr: u64, path: &Path, leader: (u32, u64)) {
        self.push(spot, addr, path, false, leader);
    }

    fn push(&mut self, spot: &Spot, addr: u64, path: &Path, missed: bool, leader: (u32, u64)) {
        // There are many of each function and file.
        let same = |last: Option<&Rc<str>>, text: &str| match last {
            Some(last) if &**last == text => Rc::clone(last),
            _ => Rc::from(text),
        };
        let last = self.all.last();
        let counted = Counted {
            definition: spot.definition,
            symbol: same(last.map(|last| &last.symbol), &spot.symbol),
            offset: spot.offset,
            addr,
            path: same(last.map(|last| &last.path), &path.to_string_lossy()),
            missed,
            counter: leader.0,
            leader: leader.1,
        };
        self.all.push(counted);
    }

    /// How many counters are in use.
    pub fn counters(&self) -> u64 {
        u64::from(self.counters)
    }

    /// All places with their hits, by the values of the counters.
    pub fn hits<'c>(&'c self, counters: &'c [u64]) -> impl Iterator<Item = (&'c Counted, u64)> {
        self.all.iter().enumerate().map(|(index, counted)| {
            let counter = counters.get(counted.counter as usize).copied();
            let correction = self.corrections.get(&index).copied();
            let hits = counter
                .unwrap_or(0)
                .wrapping_add_signed(correction.unwrap_or(0));
            (counted, hits)
        })
    }

    /// A thread has left its way through the code of a file at an instruction that it did not come behind.
    pub fn leave(&mut self, path: &Path, addr: u64) {
        self.correct(path, addr, -1, |counted| counted.addr > addr);
    }

    /// Another thread goes on behind an instruction, which this one was counted for.
    pub fn share(&mut self, path: &Path, addr: u64) {
        self.correct(path, addr, 1, |counted| counted.addr > addr);
    }

    /// A thread has come to an instruction from elsewhere than the one before it.
    pub fn enter(&mut self, path: &Path, addr: u64) {
        self.correct(path, addr, 1, |counted| counted.leader < addr);
    }

    /// Corrects what is counted in the run that an instruction belongs to, from there on.
    fn correct(&mut self, path: &Path, addr: u64, by: i64, which: impl Fn(&Counted) -> bool) {
        let path = path.to_string_lossy();
        for (index, counted) in self.all.iter().enumerate() {
            let runs = counted.leader <= addr && addr <= counted.addr;
            if runs && counted.leader != counted.addr && counted.path[..] == path && which(counted)
            {
                *self.corrections.entry(index).or_default() += by;
            }
        }
    }
}

/// A counter by its number.
pub(super) fn counter(number: u32) -> Counter {
    let number = u64::from(number);
    match counters::of_thread(number) {
        Some(at) => Counter::Thread(at),
        None => Counter::Shared {
            base: tcb::BASE as u32,
            at: counters::shared(number),
        },
    }
}

/// The counters of one run, by definition.
#[derive(Debug, Default)]
pub(super) struct Run(Vec<(usize, (u32, u64))>);

impl Run {
    /// Another run begins.
    pub fn end(&mut self) {
        self.0.clear();
    }

    /// The counter of a definition, and where it counts.
    pub fn leader(&self, definition: usize) -> Option<(u32, u64)> {
        let leader = self.0.iter().find(|leader| leader.0 == definition);
        leader.map(|leader| leader.1)
    }

    /// A definition has a counter of this number at an instruction.
    pub fn lead(&mut self, definition: usize, counter: u32, addr: u64) {
        self.0.push((definition, (counter, addr)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spot(offset: u64) -> Spot {
        Spot {
            shown: [].into(),
            definition: 0,
            symbol: "f".to_owned(),
            offset,
            returns: false,
            resolved: None,
        }
    }

    #[test]
    fn a_run_that_is_left_is_corrected_from_there_on() {
        let path = Path::new("/p");
        let mut counts = Counts::default();
        let first = counts.add(&spot(0), 0x10, path, false);
        for addr in [0x12, 0x14, 0x16] {
            counts.join(&spot(addr - 0x10), addr, path, (first, 0x10));
        }
        counts.add(&spot(8), 0x18, path, false);
        let hits = |counts: &Counts| counts.hits(&[10, 7]).map(|hit| hit.1).collect::<Vec<_>>();
        assert_eq!(
            (counts.counters(), hits(&counts)),
            (2, vec![10, 10, 10, 10, 7])
        );
        // A fault at 12, and no way back.
        counts.leave(path, 0x12);
        assert_eq!(hits(&counts), [10, 10, 9, 9, 7]);
        // A handler that goes on at 16.
        counts.enter(path, 0x16);
        assert_eq!(hits(&counts), [10, 10, 9, 10, 7]);
        // Whoever comes to the first is counted there, and the last of a run is nobody's beginning.
        counts.enter(path, 0x10);
        counts.leave(path, 0x16);
        counts.leave(path, 0x18);
        counts.leave(Path::new("/q"), 0x12);
        assert_eq!(hits(&counts), [10, 10, 9, 10, 7]);
    }
}
