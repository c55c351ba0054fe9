//! A model of caches: two at the first level, for instructions and data, and one after them for both.
//!
//! By default, it counts as cachegrind does: all caches replace the line that was used the longest time ago; a write
//! that misses fetches the line; an access that spans two lines is one reference, and at most one miss.

mod fetches;
mod level;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use hodo_dbi::{Access, Accesses, Block, Client, Insn, Kind, Observe, Recent};
use rustc_hash::FxHashMap;

use crate::causes::Causes;
use crate::coherence::Sharing;
use crate::executions::executions;
use crate::hierarchy::{Events, Hierarchy, Reach};
use crate::model::Caches;
use crate::rounds::Rounds;
use crate::timeline::{Sample, Timeline};
use fetches::{Fetch, Fetched, fetches};
use level::Cache;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Instructions that were executed: each is a reference to the first cache.
    pub instructions: u64,
    /// Instructions that were not in the first cache.
    pub fetch_misses: u64,
    /// Of these, those that were not in the second cache, if there is one.
    pub fetch_second_misses: u64,
    /// Those that were not in the last cache, either.
    pub fetch_last_misses: u64,
    /// By kind, loads first: accesses.
    pub accesses: [u64; 2],
    /// Accesses that missed the first cache.
    pub misses: [u64; 2],
    /// Of these, those that missed the second cache, if there is one.
    pub second_misses: [u64; 2],
    /// Those that missed the last cache, too.
    pub last_misses: [u64; 2],
    /// Accesses that missed the first cache because another processor had written to the line: only to other bytes of
    /// it first (false sharing), then to those that are accessed (true sharing).
    pub sharing_misses: [u64; 2],
}

impl Counts {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.instructions += other.instructions;
        self.fetch_misses += other.fetch_misses;
        self.fetch_second_misses += other.fetch_second_misses;
        self.fetch_last_misses += other.fetch_last_misses;
        for kind in 0..2 {
            self.accesses[kind] += other.accesses[kind];
            self.misses[kind] += other.misses[kind];
            self.second_misses[kind] += other.second_misses[kind];
            self.last_misses[kind] += other.last_misses[kind];
            self.sharing_misses[kind] += other.sharing_misses[kind];
        }
    }

    /// Accesses that missed the first cache, and those that missed the last one, of both kinds and fetches.
    #[must_use]
    pub fn all_misses(&self) -> (u64, u64) {
        let first = self.fetch_misses + self.misses[0] + self.misses[1];
        let last = self.fetch_last_misses + self.last_misses[0] + self.last_misses[1];
        (first, last)
    }

    /// Accesses that missed the second cache.
    #[must_use]
    pub fn all_second_misses(&self) -> u64 {
        self.fetch_second_misses + self.second_misses[0] + self.second_misses[1]
    }
}

/// A block, and what happened at its instructions.
#[derive(Debug)]
pub struct Counted {
    /// The block.
    pub block: Arc<Block>,
    /// By instruction, if anything has happened. What is the same each time is in it only after the end.
    counts: Vec<Counts>,
    /// How often it was executed to its end.
    whole: u64,
    /// How often only the first instructions were executed, by their number, if it was ever left before its end.
    uptos: Vec<u64>,
    fetches: Vec<Fetch>,
    /// The changes of the cache for instructions when it was executed last, if that changed nothing. If they still are
    /// as many, it changes nothing now, either.
    unchanged: u64,
    is_special: bool,
}

impl Counted {
    /// What happened at an instruction.
    fn at(&mut self, insn: usize) -> &mut Counts {
        if self.counts.is_empty() {
            self.counts = vec![Counts::default(); self.block.insns.len()];
        }
        &mut self.counts[insn]
    }

    /// Adds what is the same each time.
    fn end(&mut self) {
        let mut uptos = std::mem::take(&mut self.uptos);
        if uptos.is_empty() && self.whole == 0 {
            return;
        }
        uptos.resize(self.block.insns.len() + 1, 0);
        if let Some(last) = uptos.last_mut() {
            *last += std::mem::take(&mut self.whole);
        }
        let executions = executions(&uptos);
        self.at(0);
        for (counts, &executions) in self.counts.iter_mut().zip(&executions) {
            counts.instructions += executions;
        }
        for (insn, kind) in self.block.plain_kinds() {
            let counts = &mut self.counts[insn];
            counts.accesses[usize::from(kind == Kind::Store)] += executions[insn];
        }
    }

    /// Whether nothing has happened.
    fn is_unused(&self) -> bool {
        self.whole == 0 && self.uptos.is_empty() && self.counts.is_empty()
    }

    /// Adds what happened at another block with the same instructions.
    fn add(&mut self, other: &Self) {
        self.whole += other.whole;
        for (upto, &times) in other.uptos.iter().enumerate() {
            self.count(upto, times);
        }
        for (insn, counts) in other.counts.iter().enumerate() {
            self.at(insn).add(counts);
        }
    }

    /// Only the first instructions, or all of them, were executed this many times.
    #[inline]
    fn count(&mut self, upto: usize, times: u64) {
        let all = self.block.insns.len();
        if upto >= all {
            self.whole += times;
            return;
        }
        if self.uptos.is_empty() {
            self.uptos = vec![0; all + 1];
        }
        self.uptos[upto] += times;
    }
}

/// What a thread did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadCounts {
    /// The kernel's number of its process.
    pub process: i32,
    /// The kernel's number of the thread.
    pub tid: i32,
    /// Instructions that it executed.
    pub instructions: u64,
    /// Accesses of data.
    pub accesses: u64,
    /// Accesses that missed the first cache.
    pub misses: u64,
    /// Of these, those that missed the last cache, too.
    pub last_misses: u64,
    /// Of those that missed the first cache, the ones that did so because another processor had written to the line.
    pub sharing_misses: u64,
}

/// Simulates caches.
#[derive(Debug)]
pub struct Simulator {
    instructions: Cache,
    data: Cache,
    last: Cache,
    /// Used instead of these, if more is wanted.
    detailed: Option<Box<Hierarchy>>,
    /// What changes no cache.
    recent: Option<Recent>,
    /// By number.
    blocks: Vec<Option<Counted>>,
    /// Instructions of the block that is being executed that were not in the first cache.
    missed: Vec<u16>,
    threads: Vec<ThreadCounts>,
    /// Fetches that were received by themselves.
    fetched: Fetched,
    timeline: Timeline,
    /// Accesses of data that missed the first cache, if they are wanted.
    misses: Option<Vec<Miss>>,
    /// Executions are received as numbers, and only accesses that may change a cache.
    by_lines: bool,
    ended: Ended,
    /// What threads do at the same time, if they are on several processors.
    rounds: Option<Rounds>,
}

/// Blocks that no process has any more. A program that runs many others would fill the memory with them.
#[derive(Debug, Default)]
struct Ended {
    /// Blocks since this was looked at last.
    new: usize,
    /// Those that nobody had then. What was told of them before has been received by the next time.
    gone: Vec<u32>,
    /// A block for each place in a file. What happened at blocks with the same instructions there is added to it.
    places: FxHashMap<(PathBuf, u64), u32>,
}

/// Ended processes are looked for whenever this many blocks have come.
const MANY: usize = 50_000;

/// An access of data that missed the first cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Miss {
    pub(crate) address: u64,
    /// It missed the last one, too.
    pub(crate) is_last: bool,
}

impl Simulator {
    /// With empty caches.
    ///
    /// # Errors
    /// If there can be no such caches.
    pub fn new(caches: Caches) -> Result<Self> {
        caches.check()?;
        let cache = |geometry| Cache::new(geometry, caches.policy);
        let is_detailed = caches.is_detailed();
        Ok(Self {
            instructions: cache(caches.instructions),
            data: cache(caches.data),
            last: cache(caches.last),
            recent: caches.recent(),
            detailed: is_detailed.then(|| Box::new(Hierarchy::new(&caches))),
            blocks: Vec::new(),
            missed: Vec::new(),
            fetched: Fetched::default(),
            threads: Vec::new(),
            timeline: Timeline::new(),
            misses: None,
            by_lines: false,
            ended: Ended::default(),
            rounds: (caches.extent.cores > 1).then(Rounds::default),
        })
    }

    /// What threads may leave out, because it changes no cache: the simulator is to receive [`Observe::Lines`] of this.
    /// `None`: everything changes something, or threads cannot compare it. A timeline has only its end then.
    pub fn by_lines(&mut self) -> Option<Observe> {
        let recent = self.recent?;
        self.by_lines = true;
        Some(Observe::Lines(recent))
    }

    /// The timeline has working sets of lines of the first cache for data.
    pub fn keep_lines(&mut self) {
        self.timeline.keep_lines(self.data.shift);
    }

    /// Keeps misses until they are taken.
    pub(crate) fn keep_misses(&mut self) {
        self.misses = Some(Vec::new());
    }

    /// Takes the misses since this was done last: `use_miss` receives each.
    pub(crate) fn take_misses(&mut self, use_miss: impl FnMut(Miss)) {
        if let Some(misses) = &mut self.misses {
            misses.drain(..).for_each(use_miss);
        }
    }

    /// Why data was not in the first cache, if that was wanted. An access of two lines counts once.
    #[must_use]
    pub fn causes(&self) -> Option<Causes> {
        self.detailed.as_ref()?.causes()
    }

    /// What else happened, if anything was simulated in more detail.
    #[must_use]
    pub fn events(&self) -> Option<Events> {
        self.detailed.as_ref().map(|detailed| detailed.events())
    }

    /// How much had happened at times that are about equally far from each other, and at the end.
    #[must_use]
    pub fn timeline(&self) -> &[Sample] {
        self.timeline.samples()
    }

    /// Adds up what happened at blocks of processes that have ended.
    fn forget_ended(&mut self) {
        self.ended.new = 0;
        // Other blocks may get their addresses.
        self.fetched.clear();
        // The engine has none, only the decoder and this.
        let is_gone = |counted: &Counted| Arc::strong_count(&counted.block) <= 2;
        for id in std::mem::take(&mut self.ended.gone) {
            let Some(counted) = self.blocks[id as usize].take_if(|counted| is_gone(counted)) else {
                continue;
            };
            if counted.is_unused() {
                continue;
            }
            let same = counted.block.file.clone().map(|place| {
                let same = *self.ended.places.entry(place).or_insert(id);
                self.blocks.get_mut(same as usize)
            });
            match same {
                Some(Some(Some(same))) if same.block.code == counted.block.code => {
                    same.add(&counted);
                }
                _ => self.blocks[id as usize] = Some(counted),
            }
        }
        let gone = self.blocks.iter().flatten();
        let gone = gone.filter(|counted| is_gone(counted));
        self.ended.gone = gone.map(|counted| counted.block.id).collect();
    }

    /// What each thread did, by its number.
    #[must_use]
    pub fn threads(&self) -> &[ThreadCounts] {
        &self.threads
    }

    #[inline(always)]
    fn thread_counts(&mut self, thread: u32) -> &mut ThreadCounts {
        let number = thread as usize;
        if self.threads.len() <= number {
            self.add_threads(number);
        }
        &mut self.threads[number]
    }

    #[cold]
    fn add_threads(&mut self, last: usize) {
        self.threads.resize(last + 1, ThreadCounts::default());
    }

    /// All blocks, and what happened at their instructions.
    pub fn blocks(&self) -> impl Iterator<Item = (&Arc<Block>, &[Counts])> {
        let blocks = self.blocks.iter().flatten();
        blocks.map(|counted| (&counted.block, &counted.counts[..]))
    }

    /// What happened in all.
    #[must_use]
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        for counts in self.blocks().flat_map(|(_, counts)| counts) {
            total.add(counts);
        }
        total
    }
}

impl Client for Simulator {
    fn thread(&mut self, thread: u32, process: i32, tid: i32) {
        let counts = self.thread_counts(thread);
        (counts.process, counts.tid) = (process, tid);
        if let Some(detailed) = &mut self.detailed {
            detailed.add_thread(thread, process, tid);
        }
    }

    fn block(&mut self, block: &Arc<Block>) {
        self.ended.new += 1;
        if self.by_lines && self.ended.new >= MANY {
            self.forget_ended();
        }
        let number = block.id as usize;
        if self.blocks.len() <= number {
            self.blocks.resize_with(number + 1, || None);
        }
        self.blocks[number] = Some(Counted {
            block: Arc::clone(block),
            counts: Vec::new(),
            whole: 0,
            uptos: Vec::new(),
            fetches: fetches(block, self.instructions.shift),
            unchanged: u64::MAX,
            is_special: block.is_special(),
        });
    }

    fn block_again(&mut self, block: &Arc<Block>) {
        match self.blocks.get_mut(block.id as usize) {
            Some(Some(counted)) => counted.block = Arc::clone(block),
            // What was known was added to another one's.
            _ => self.block(block),
        }
    }

    fn counted(&mut self, thread: u32, block: &Arc<Block>, upto: usize, times: u64) {
        let Some(Some(counted)) = self.blocks.get_mut(block.id as usize) else {
            return;
        };
        counted.count(upto, times);
        let instructions = upto as u64 * times;
        self.timeline.go_on(instructions);
        let own = self.thread_counts(thread);
        own.instructions += instructions;
        own.accesses += block.plain_accesses(upto).count() as u64 * times;
    }

    fn fetched(&mut self, thread: u32, block: &Arc<Block>, insn: usize) {
        if let Some(detailed) = &mut self.detailed {
            if insn >= block.insns.len() {
                return;
            }
            let process = self.threads.get(thread as usize).map(|own| own.process);
            detailed.turn_to(thread, process.unwrap_or(0));
            if let Some(Some(counted)) = self.blocks.get_mut(block.id as usize) {
                fetch_in_detail(detailed, counted, insn);
            }
        } else if !self.fetched.fetch(block, insn, &mut self.instructions) {
            self.missed.push(insn as u16);
            self.fetch_last(block.id, u16::MAX);
        }
    }

    #[inline]
    fn accessed(&mut self, thread: u32, block: &Arc<Block>, access: &Access) {
        self.data(thread, block.id, access);
    }

    fn events(&self) -> hodo_dbi::Events {
        match self.rounds {
            Some(_) => hodo_dbi::Events::default().in_order(),
            None => hodo_dbi::Events::default(),
        }
    }

    fn continues(&mut self, thread: u32) {
        if self
            .rounds
            .as_mut()
            .is_some_and(|rounds| rounds.begin(thread))
        {
            self.end_round();
        }
    }

    #[inline]
    fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        if self.by_lines {
            return self.special(thread, block, accesses);
        }
        match &mut self.rounds {
            Some(rounds) => {
                rounds.add(thread, block.id, upto, accesses);
                if rounds.is_full() {
                    self.end_round();
                }
            }
            None => self.simulate(thread, block.id, upto, accesses),
        }
    }

    #[inline]
    fn visit(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: Accesses<'_>) {
        if self.by_lines
            || self.rounds.is_some()
            || self.detailed.is_some()
            || self.timeline.lines().is_some()
        {
            return self.executed(thread, block, upto, accesses.all());
        }
        let block = block.id;
        if self.begin(thread, block, upto, accesses.len()) {
            let mut at = 0;
            while let Some(access) = accesses.find(&mut at, |address, size| {
                !self.data.changes_nothing(address, size)
            }) {
                self.access(thread, block, &access);
            }
            if !self.missed.is_empty() {
                self.fetch_last(block, u16::MAX);
            }
        }
    }

    fn end(&mut self) -> Result<()> {
        self.end_round();
        self.timeline.end(self.misses_of_threads());
        for counted in self.blocks.iter_mut().flatten() {
            counted.end();
        }
        Ok(())
    }
}

impl Simulator {
    /// What threads did in a round is simulated.
    fn end_round(&mut self) {
        if let Some(mut rounds) = self.rounds.take() {
            rounds
                .end(|thread, block, upto, accesses| self.simulate(thread, block, upto, accesses));
            self.rounds = Some(rounds);
        }
    }

    /// Accesses that missed the first cache for data, and the last one.
    fn misses_of_threads(&self) -> [u64; 2] {
        let sum = |of: fn(&ThreadCounts) -> u64| self.threads.iter().map(of).sum();
        [
            sum(|counts| counts.misses),
            sum(|counts| counts.last_misses),
        ]
    }

    /// A thread has executed the first `upto` instructions of a block.
    fn simulate(&mut self, thread: u32, block: u32, upto: usize, accesses: &[Access]) {
        if let Some(lines) = self.timeline.lines() {
            for access in accesses {
                lines.access(access.address, access.size);
            }
        }
        if !self.begin(thread, block, upto, accesses.len()) {
            return;
        }
        let Some(Some(counted)) = self.blocks.get_mut(block as usize) else {
            return;
        };
        if counted.is_special {
            // They are not always the same.
            for access in accesses {
                let kind = usize::from(access.kind == Kind::Store);
                counted.at(access.insn.into()).accesses[kind] += 1;
            }
        }
        if let Some(detailed) = &mut self.detailed {
            let own = &mut self.threads[thread as usize];
            let misses = &mut self.misses;
            detailed.turn_to(thread, own.process);
            return in_detail(detailed, counted, (own, misses), upto, accesses);
        }
        for access in accesses {
            self.plain_data(thread, block, access);
        }
        if !self.missed.is_empty() {
            self.fetch_last(block, u16::MAX);
        }
    }

    /// A thread executes the first `upto` instructions of a block, with this number of accesses: counts these, and
    /// fetches the instructions. Returns whether the block is known.
    #[inline(always)]
    fn begin(&mut self, thread: u32, block: u32, upto: usize, accesses: usize) -> bool {
        let own = self.thread_counts(thread);
        own.instructions += upto as u64;
        own.accesses += accesses as u64;
        if self.timeline.go_on(upto as u64) {
            self.timeline.pause(self.misses_of_threads());
        }
        let Some(Some(counted)) = self.blocks.get_mut(block as usize) else {
            return false;
        };
        counted.count(upto, 1);
        // The caches of the first level do not depend on each other.
        if self.detailed.is_none() && counted.unchanged != self.instructions.changes {
            fetch(counted, upto, &mut self.instructions, &mut self.missed);
        }
        true
    }

    /// An access to data, unless more detail is wanted.
    #[inline(always)]
    fn plain_data(&mut self, thread: u32, block: u32, access: &Access) {
        if !self.data.changes_nothing(access.address, access.size) {
            self.access(thread, block, access);
        }
    }
}

/// The first instructions of a block are fetched from the first cache. Adds those that were not in it.
#[inline(always)]
fn fetch(counted: &mut Counted, upto: usize, cache: &mut Cache, missed: &mut Vec<u16>) {
    let before = cache.changes;
    for fetch in &mut counted.fetches {
        if usize::from(fetch.insn) >= upto {
            break;
        }
        if !cache.is_recent(fetch.first, fetch.last)
            && !cache.lines_near(fetch.first, fetch.last, &mut fetch.place)
        {
            missed.push(fetch.insn);
        }
    }
    if cache.changes == before && upto == counted.block.insns.len() {
        counted.unchanged = before;
    }
}

/// The first instructions of a block, with their accesses.
fn in_detail(
    caches: &mut Hierarchy,
    counted: &mut Counted,
    (own, misses): (&mut ThreadCounts, &mut Option<Vec<Miss>>),
    upto: usize,
    accesses: &[Access],
) {
    let mut accesses = accesses.iter().peekable();
    for number in 0..counted.fetches.len() {
        let insn = counted.fetches[number].insn;
        if usize::from(insn) >= upto {
            break;
        }
        while let Some(one) = accesses.next_if(|access| access.insn < insn) {
            access_in_detail(caches, counted, (own, misses), one);
        }
        fetch_in_detail(caches, counted, insn.into());
    }
    for one in accesses {
        access_in_detail(caches, counted, (own, misses), one);
    }
}

fn fetch_in_detail(caches: &mut Hierarchy, counted: &mut Counted, insn: usize) {
    let Insn { pc, len, .. } = counted.block.insns[insn];
    let reach = caches.fetch(pc, len.into());
    if reach > Reach::First {
        let counts = counted.at(insn);
        counts.fetch_misses += 1;
        counts.fetch_second_misses += u64::from(caches.has_second() && reach > Reach::Second);
        counts.fetch_last_misses += u64::from(reach > Reach::Last);
    }
}

fn access_in_detail(
    caches: &mut Hierarchy,
    counted: &mut Counted,
    (own, misses): (&mut ThreadCounts, &mut Option<Vec<Miss>>),
    access: &Access,
) {
    let insn = usize::from(access.insn);
    let kind = usize::from(access.kind == Kind::Store);
    let pc = counted.block.insns[insn].pc;
    let (reach, sharing) = caches.access(pc, access.address, access.size, kind == 1);
    if reach > Reach::First {
        let counts = counted.at(insn);
        counts.misses[kind] += 1;
        counts.second_misses[kind] += u64::from(caches.has_second() && reach > Reach::Second);
        counts.last_misses[kind] += u64::from(reach > Reach::Last);
        if let Some(sharing) = sharing {
            counts.sharing_misses[usize::from(sharing == Sharing::True)] += 1;
            own.sharing_misses += 1;
        }
        own.misses += 1;
        own.last_misses += u64::from(reach > Reach::Last);
        if let Some(misses) = misses {
            misses.push(Miss {
                address: access.address,
                is_last: reach > Reach::Last,
            });
        }
    }
}

impl Simulator {
    /// Accesses of a special block, which is counted elsewhere.
    fn special(&mut self, thread: u32, block: &Arc<Block>, accesses: &[Access]) {
        self.thread_counts(thread).accesses += accesses.len() as u64;
        for access in accesses {
            if let Some(Some(counted)) = self.blocks.get_mut(block.id as usize) {
                let kind = usize::from(access.kind == Kind::Store);
                counted.at(access.insn.into()).accesses[kind] += 1;
            }
            self.data(thread, block.id, access);
        }
    }

    /// An access to data.
    #[inline(always)]
    fn data(&mut self, thread: u32, block: u32, access: &Access) {
        if let Some(detailed) = &mut self.detailed {
            if let Some(Some(counted)) = self.blocks.get_mut(block as usize)
                && let Some(own) = self.threads.get_mut(thread as usize)
            {
                detailed.turn_to(thread, own.process);
                access_in_detail(detailed, counted, (own, &mut self.misses), access);
            }
        } else if !self.data.changes_nothing(access.address, access.size) {
            self.access(thread, block, access);
        }
    }

    /// An access that may change a cache.
    #[inline(never)]
    fn access(&mut self, thread: u32, block: u32, access: &Access) {
        if self.data.access(access.address, access.size) {
            return;
        }
        if !self.missed.is_empty() {
            self.fetch_last(block, access.insn);
        }
        let hits = self.last.access(access.address, access.size);
        if let Some(Some(counted)) = self.blocks.get_mut(block as usize) {
            let kind = usize::from(access.kind == Kind::Store);
            let counts = counted.at(access.insn.into());
            counts.misses[kind] += 1;
            counts.last_misses[kind] += u64::from(!hits);
        }
        let own = self.thread_counts(thread);
        own.misses += 1;
        own.last_misses += u64::from(!hits);
        if let Some(misses) = &mut self.misses {
            misses.push(Miss {
                address: access.address,
                is_last: !hits,
            });
        }
    }

    /// Instructions up to this one that were not in the first cache are fetched from the last one.
    #[cold]
    fn fetch_last(&mut self, block: u32, upto: u16) {
        let missed = self.missed.iter();
        let now = missed.take_while(|&&insn| insn <= upto).count();
        let Some(Some(counted)) = self.blocks.get_mut(block as usize) else {
            return;
        };
        for insn in self.missed.drain(..now).map(usize::from) {
            let Insn { pc, len, .. } = counted.block.insns[insn];
            let counts = counted.at(insn);
            counts.fetch_misses += 1;
            counts.fetch_last_misses += u64::from(!self.last.access(pc, len.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Extent, Geometry};
    use crate::replacement::Policy;

    /// Says for each set which lines were used last, slowly.
    struct Slow {
        geometry: Geometry,
        used: Vec<u64>,
    }

    impl Slow {
        fn touch(&mut self, line: u64) -> bool {
            let sets = self.geometry.sets();
            let same: Vec<u64> = self
                .used
                .iter()
                .rev()
                .copied()
                .filter(|used| used % sets == line % sets)
                .collect();
            let mut last: Vec<u64> = Vec::new();
            for used in same {
                if !last.contains(&used) {
                    last.push(used);
                }
            }
            self.used.push(line);
            last.iter()
                .take(self.geometry.ways as usize)
                .any(|&used| used == line)
        }
    }

    #[test]
    fn a_cache_does_what_a_slow_one_does() {
        let mut random = 1u64;
        let mut next = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            random >> 33
        };
        for (sets, ways) in [(1, 1), (4, 2), (3, 4), (8, 8), (16, 1)] {
            let geometry = Geometry {
                size: sets * u64::from(ways) * 64,
                ways,
                line: 64,
            };
            let mut fast = Cache::new(geometry.check().expect("it can be"), Policy::Lru);
            let mut slow = Slow {
                geometry,
                used: Vec::new(),
            };
            let mut hits = 0;
            for _ in 0..1500 {
                let line = next() % (sets * u64::from(ways) * 2);
                let hit = fast.touch(line);
                assert_eq!(hit, slow.touch(line));
                hits += u32::from(hit);
            }
            assert!(hits > 100);
        }
    }

    #[test]
    fn accesses_of_two_lines_are_there_if_both_are() {
        let geometry = Geometry {
            size: 1024,
            ways: 2,
            line: 64,
        };
        let mut cache = Cache::new(geometry, Policy::Lru);
        assert!(!cache.access(60, 8));
        assert!(cache.access(0, 1) && cache.access(64, 8) && cache.access(60, 8));
        assert!(!cache.access(126, 4) && cache.access(128, 1));
    }

    #[test]
    fn more_detail_changes_no_misses() {
        let geometry = |size, ways| Geometry {
            size,
            ways,
            line: 64,
        };
        for policy in [Policy::Lru, Policy::Fifo, Policy::TreePlru] {
            let caches = |write_backs| Caches {
                instructions: geometry(512, 2),
                data: geometry(1024, 4),
                second: None,
                last: geometry(4096, 8),
                policy,
                extent: Extent {
                    write_backs,
                    ..Extent::default()
                },
            };
            let [plain, detailed] = [false, true].map(|write_backs| {
                let mut simulator = Simulator::new(caches(write_backs)).expect("right caches");
                run(&mut simulator);
                simulator.total()
            });
            assert_eq!(plain, detailed, "{policy:?}");
            assert!(plain.fetch_misses > 100 && plain.last_misses[1] > 100);
        }
    }

    /// Small caches, of which threads compare lines.
    fn by_lines() -> Simulator {
        let geometry = Geometry {
            size: 1024,
            ways: 4,
            line: 64,
        };
        let caches = Caches {
            instructions: geometry,
            data: geometry,
            second: None,
            last: geometry,
            policy: Policy::Lru,
            extent: Extent::default(),
        };
        let mut simulator = Simulator::new(caches).expect("right caches");
        assert!(simulator.by_lines().is_some());
        simulator
    }

    #[test]
    fn blocks_of_processes_that_have_ended_are_added_up() {
        let mut simulator = by_lines();
        let processes = 5;
        let mut id = 0;
        for _ in 0..processes {
            for place in 0..MANY as u64 {
                let insn = Insn {
                    pc: 64 * place,
                    len: 1,
                    transfer: hodo_dbi::Transfer::Next,
                };
                // At one place, there is different code each time.
                let code = if place == 7 { id as u8 } else { 0x90 };
                let mut block = Block::of_instruction(id, insn, &[code]);
                block.file = Some(("file".into(), place));
                let block = Arc::new(block);
                simulator.block(&block);
                if place % 2 == 1 {
                    simulator.counted(0, &block, 1, 3);
                    simulator.fetched(0, &block, 0);
                }
                id += 1;
            }
        }
        let blocks = simulator.blocks().count();
        assert!(blocks < 3 * MANY, "{blocks}");
        simulator.end().expect("nothing can fail");
        let total = simulator.total();
        let executed = processes * MANY as u64 / 2;
        assert_eq!(total.instructions, 3 * executed);
        assert_eq!(total.fetch_misses, executed);
        let others = simulator.blocks().filter(|(block, counts)| {
            block.insns[0].pc == 64 * 7 && counts.iter().any(|counts| counts.instructions == 3)
        });
        assert!(others.count() >= 3);
    }

    #[test]
    fn blocks_of_other_parts_have_not_ended() {
        let mut simulator = by_lines();
        let made = |id| {
            let insn = Insn {
                pc: 64,
                len: 1,
                transfer: hodo_dbi::Transfer::Next,
            };
            let mut block = Block::of_instruction(id, insn, &[0x90]);
            block.file = Some(("file".into(), 7));
            Arc::new(block)
        };
        // Another one at the place is what all are added to.
        let other = made(0);
        simulator.block(&other);
        for part in 0..4 {
            // The engine and the decoder have it.
            let block = made(1);
            let decoder = Arc::clone(&block);
            match part {
                0 => simulator.block(&block),
                _ => simulator.block_again(&block),
            }
            if part == 2 {
                simulator.forget_ended();
                simulator.forget_ended();
            }
            simulator.counted(0, &block, 1, 3);
            simulator.fetched(0, &block, 0);
            drop((block, decoder));
            if part == 2 {
                simulator.forget_ended();
                simulator.forget_ended();
            }
        }
        simulator.end().expect("nothing can fail");
        assert_eq!(simulator.total().instructions, 4 * 3);
    }

    /// Instructions that access anything.
    fn run(simulator: &mut Simulator) {
        let mut random = 1u64;
        let mut next = |most: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % most
        };
        let insn = |id: u32| Insn {
            pc: u64::from(id) * 40,
            len: 7,
            transfer: hodo_dbi::Transfer::Next,
        };
        let blocks = (0..50).map(|id| Arc::new(Block::of_instruction(id, insn(id), &[0x90; 7])));
        let blocks: Vec<Arc<Block>> = blocks.collect();
        for block in &blocks {
            simulator.block(block);
        }
        for _ in 0..20_000 {
            let count = next(4);
            let accesses = (0..count).map(|_| Access {
                address: 0x10_0000 + next(100) * next(100) / 16 * 16,
                size: 1 << next(5),
                insn: 0,
                offset: 0,
                kind: if next(2) == 0 {
                    Kind::Load
                } else {
                    Kind::Store
                },
            });
            let accesses: Vec<Access> = accesses.collect();
            simulator.executed(0, &blocks[next(50) as usize], 1, &accesses);
        }
        simulator.end().expect("nothing can fail");
    }
}
