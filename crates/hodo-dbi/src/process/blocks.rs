//! The blocks of threads: memory of hodo that each thread has.

use hodo_abi::Span;
use rustc_hash::FxHashSet;

use super::PAGE;
use crate::native::block;
use crate::places::AWAY;

/// Bytes for the blocks of threads that are not observed.
pub(super) const SIZE: u64 = 4 << 20;

/// Which blocks threads have.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Where those of threads are that are not observed,
    span: Span,
    /// and how many bytes of that were given to threads.
    used: u64,
    /// All that were given to threads.
    given: FxHashSet<u64>,
    /// Those of threads that have ended.
    free: Vec<u64>,
    /// The number of threads that have one. A child keeps its parent's number.
    threads: usize,
    /// Where memory for the next thread that is observed may be.
    next: u64,
}

impl Blocks {
    /// No thread has one, and there is no memory for them.
    pub(super) fn none() -> Self {
        Self {
            span: Span::EMPTY,
            used: 0,
            given: FxHashSet::default(),
            free: Vec::new(),
            threads: 0,
            next: AWAY + SIZE,
        }
    }

    /// They are here.
    pub(super) fn begin(&mut self, at: u64) -> Span {
        self.span = Span::at(at, SIZE);
        self.used = 0;
        self.span
    }

    /// Those in a process that was forked just now by the thread with this block.
    pub(super) fn forked(&self, block: Option<u64>) -> Self {
        let is_own = |&at: &u64| Some(at) == block;
        // Pages of blocks after that of its own may have become accessible since it was forked.
        let used = match block.filter(|&at| self.span.contains(at)) {
            Some(at) => (at + block::SIZE - self.span.start).next_multiple_of(PAGE),
            None => self.used,
        };
        let is_there = |&at: &u64| used == 0 || at < self.span.start + used;
        let free = self.free.iter().copied();
        Self {
            span: self.span,
            used,
            given: block.into_iter().collect(),
            // The maker may have ended already.
            free: free.filter(|at| !is_own(at) && is_there(at)).collect(),
            threads: self.threads + usize::from(self.free.iter().any(is_own)),
            next: self.next,
        }
    }

    /// One of a thread that has ended.
    pub(super) fn take_free(&mut self) -> Option<u64> {
        self.free.pop()
    }

    /// One that no thread has had, for a thread that is not observed. `None`: there is none left.
    pub(super) fn take_new(&mut self) -> Option<u64> {
        let at = self.span.start + self.used;
        if self.used + block::SIZE > self.span.len() {
            return None;
        }
        self.used += block::SIZE;
        Some(at)
    }

    /// How many threads can have one at most, if they are not observed.
    pub(super) fn most(&self) -> u64 {
        self.span.len() / block::SIZE
    }

    /// Where memory for the next thread that is observed may be.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// That memory has this size.
    pub(super) fn skip(&mut self, size: u64) {
        self.next += size;
    }

    /// A thread has this one from now on.
    pub(super) fn give(&mut self, at: u64) {
        self.given.insert(at);
        self.threads += 1;
    }

    /// The thread that had this one has ended.
    pub(super) fn end(&mut self, at: u64) {
        self.free.push(at);
        self.threads -= 1;
    }

    /// All that were given to threads.
    pub(super) fn given(&self) -> impl Iterator<Item = u64> {
        self.given.iter().copied()
    }

    /// Whether only one thread has one.
    pub(super) fn is_single(&self) -> bool {
        self.threads == 1
    }
}
