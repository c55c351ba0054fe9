//! What each counter counts.
//!
//! Instructions of which each is executed whenever the one before it is share a counter: a hit is counted at the first
//! of them. Where a fault or a signal ends such a run in between, and the program does not come back to that place,
//! those after it have one hit less, which the tracer tells ([`Counts::leave`]).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use hodo_codegen::native::detour::Counter;
use hodo_trace::format::{counters, tcb};
use serde::Serialize;

use super::wanted::ProbePoint;

/// One of `counts.json`: a place that is counted, or several of one function.
#[derive(Debug, Serialize)]
pub struct Line<'c> {
    pub addr: u64,
    #[serde(skip_serializing_if = "is_not")]
    pub by_offset: bool,
    pub group: &'c str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hits: Option<u64>,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nmissed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    pub path: &'c str,
    /// Distances from the function's beginning, and hits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<(u64, u64)>,
    pub symbol: &'c str,
}

fn is_not(flag: &bool) -> bool {
    !flag
}

/// Places of one function that are counted by one definition, in the order in which they were added.
#[derive(Debug)]
pub struct Counted {
    /// Index of the definition.
    pub definition: usize,
    /// The function.
    pub symbol: Rc<str>,
    /// Link-time address from which its places are counted.
    pub start: u64,
    /// The file.
    pub path: Rc<str>,
    /// What a return probe misses is counted, not the hits of a probe.
    pub missed: bool,
    /// Link-time address of the first place.
    first: u64,
    places: Vec<Place>,
}

/// One of these places. There may be millions.
#[derive(Debug)]
struct Place {
    /// Its distance from the first.
    at: u32,
    /// The number of the counter.
    counter: u32,
    /// How far before it the instruction is at which the counter counts.
    after: u32,
}

impl Counted {
    /// Takes a place to the others, if it fits to these.
    fn take(&mut self, addr: u64, (counter, leader): (u32, u64)) -> bool {
        let at = addr.checked_sub(self.first).map(u32::try_from);
        let after = addr.checked_sub(leader).map(u32::try_from);
        let (Some(Ok(at)), Some(Ok(after))) = (at, after) else {
            return false;
        };
        self.places.push(Place { at, counter, after });
        true
    }

    /// Link-time addresses of a place, and of the instruction at which its counter counts.
    fn addresses(&self, place: &Place) -> (u64, u64) {
        let addr = self.first + u64::from(place.at);
        (addr, addr - u64::from(place.after))
    }
}

/// All that is counted.
#[derive(Debug, Default)]
pub struct Counts {
    all: Vec<Counted>,
    /// By definition, the index in `all` of what was added last.
    last: Vec<Option<usize>>,
    /// The paths of files, and the same as text.
    paths: Vec<(PathBuf, Rc<str>)>,
    /// Counters in use.
    counters: u32,
    /// By index in `all` and in its places, what has to be added to the hits.
    corrections: HashMap<(usize, usize), i64>,
}

impl Counts {
    /// Something more is counted, by a counter of its own, whose number is returned.
    pub(super) fn add(&mut self, point: &ProbePoint, addr: u64, path: &Path, missed: bool) -> u32 {
        let counter = self.counters;
        self.counters += 1;
        self.push(point, addr, path, missed, (counter, addr));
        counter
    }

    /// Something more is counted, by the counter of another place: its number and that place.
    pub(super) fn join(&mut self, point: &ProbePoint, addr: u64, path: &Path, leader: (u32, u64)) {
        self.push(point, addr, path, false, leader);
    }

    fn push(
        &mut self,
        point: &ProbePoint,
        addr: u64,
        path: &Path,
        missed: bool,
        leader: (u32, u64),
    ) {
        let path = self.path(path);
        let last = self.last.get(point.definition).copied().flatten();
        if let Some(last) = last.map(|last| &mut self.all[last])
            && last.start == point.start
            && !(last.missed || missed)
            && last.symbol == point.symbol
            && Rc::ptr_eq(&last.path, &path)
            && last.take(addr, leader)
        {
            return;
        }
        let mut counted = Counted {
            definition: point.definition,
            symbol: Rc::clone(&point.symbol),
            start: point.start,
            path,
            missed,
            first: addr,
            places: Vec::new(),
        };
        let taken = counted.take(addr, leader);
        debug_assert!(taken, "a run is short");
        if let Some(before) = last {
            self.all[before].places.shrink_to_fit();
        }
        if self.last.len() <= point.definition {
            self.last.resize(point.definition + 1, None);
        }
        self.last[point.definition] = Some(self.all.len());
        self.all.push(counted);
    }

    /// A file's path as text, which all its places have in common.
    fn path(&mut self, path: &Path) -> Rc<str> {
        let known = self
            .paths
            .iter()
            .find(|(known, _)| known.as_os_str() == path.as_os_str());
        if let Some((_, text)) = known {
            return Rc::clone(text);
        }
        let text = Rc::from(path.to_string_lossy());
        self.paths.push((path.to_owned(), Rc::clone(&text)));
        text
    }

    /// How many counters are in use.
    pub fn counters(&self) -> u64 {
        u64::from(self.counters)
    }

    /// What is counted: by function, link-time addresses with their hits, by the values of the counters.
    pub fn hits<'c>(
        &'c self,
        counters: &'c [u64],
    ) -> impl Iterator<Item = (&'c Counted, impl ExactSizeIterator<Item = (u64, u64)>)> {
        self.all.iter().enumerate().map(move |(index, counted)| {
            let hits = move |(number, place): (usize, &Place)| {
                let counter = counters.get(place.counter as usize).copied();
                let correction = self.corrections.get(&(index, number)).copied();
                let hits = counter
                    .unwrap_or(0)
                    .wrapping_add_signed(correction.unwrap_or(0));
                (counted.addresses(place).0, hits)
            };
            (counted, counted.places.iter().enumerate().map(hits))
        })
    }

    /// A thread has left its way through the code of a file at an instruction to which it had not come that way.
    pub fn leave(&mut self, path: &Path, addr: u64) {
        self.correct(path, addr, -1, |place, _| place > addr);
    }

    /// Another thread goes on after an instruction, which this one was counted for.
    pub fn share(&mut self, path: &Path, addr: u64) {
        self.correct(path, addr, 1, |place, _| place > addr);
    }

    /// A thread has come to an instruction from elsewhere than the one before it.
    pub fn enter(&mut self, path: &Path, addr: u64) {
        self.correct(path, addr, 1, |_, leader| leader < addr);
    }

    /// Corrects what is counted in the run that an instruction belongs to, from there on: the places for which `which`
    /// holds, by their addresses and those of their leaders.
    fn correct(&mut self, path: &Path, addr: u64, by: i64, which: impl Fn(u64, u64) -> bool) {
        let path = path.to_string_lossy();
        for (index, counted) in self.all.iter().enumerate() {
            if counted.path[..] != path {
                continue;
            }
            for (number, place) in counted.places.iter().enumerate() {
                let (at, leader) = counted.addresses(place);
                if leader <= addr && addr <= at && leader != at && which(at, leader) {
                    *self.corrections.entry((index, number)).or_default() += by;
                }
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

    fn point() -> ProbePoint {
        ProbePoint {
            shown: [].into(),
            definition: 0,
            symbol: "f".into(),
            start: 0x10,
            returns: false,
            resolved: None,
        }
    }

    #[test]
    fn a_run_that_is_left_is_corrected_from_there_on() {
        let path = Path::new("/p");
        let mut counts = Counts::default();
        let first = counts.add(&point(), 0x10, path, false);
        for addr in [0x12, 0x14, 0x16] {
            counts.join(&point(), addr, path, (first, 0x10));
        }
        counts.add(&point(), 0x18, path, false);
        let hits = |counts: &Counts| -> Vec<u64> {
            let all = counts.hits(&[10, 7]).flat_map(|(_, places)| places);
            all.map(|(_, hits)| hits).collect()
        };
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

    #[test]
    fn places_of_one_function_and_definition_are_together() {
        let path = Path::new("/p");
        let mut counts = Counts::default();
        let of = |definition, symbol: &str, start| ProbePoint {
            definition,
            symbol: symbol.into(),
            start,
            ..point()
        };
        let (f, again, g) = (of(0, "f", 0x10), of(1, "f", 0x10), of(0, "g", 0x20));
        for addr in [0x10, 0x12, 0x14] {
            counts.add(&f, addr, path, false);
            counts.add(&again, addr, path, false);
        }
        counts.add(&f, 0x16, Path::new("/q"), false);
        counts.add(&g, 0x20, path, false);
        counts.add(&g, 0x20, path, true);
        // It is not after the first.
        counts.add(&f, 0x0E, path, false);
        let values: Vec<u64> = (0..counts.counters()).collect();
        let all: Vec<_> = counts
            .hits(&values)
            .map(|(counted, places)| {
                let places: Vec<_> = places.collect();
                (counted.definition, &*counted.symbol, places, counted.missed)
            })
            .collect();
        assert_eq!(
            all,
            [
                (0, "f", vec![(0x10, 0), (0x12, 2), (0x14, 4)], false),
                (1, "f", vec![(0x10, 1), (0x12, 3), (0x14, 5)], false),
                (0, "f", vec![(0x16, 6)], false),
                (0, "g", vec![(0x20, 7)], false),
                (0, "g", vec![(0x20, 8)], true),
                (0, "f", vec![(0x0E, 9)], false),
            ]
        );
    }
}
