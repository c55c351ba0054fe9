//! The threads that are followed.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use hodo_ptrace::{Stopped, process_of, status};
use rustc_hash::FxHashMap;

/// How many ended threads are remembered before they are forgotten: a child may appear after the end of the thread that
/// made it.
const REMEMBERED: usize = 16;

/// What is known of a thread that is followed.
pub trait Task: Sized {
    /// Its process.
    fn process(&self) -> i32;

    /// What tells children that have it from all others, if anything does: see [`Policy::mark_of`].
    ///
    /// [`Policy::mark_of`]: crate::Policy::mark_of
    fn mark(&self) -> Option<u64>;

    /// What is needed of it for threads that it makes.
    #[must_use]
    fn as_maker(&self) -> Self;
}

/// The threads that are followed, by their numbers.
#[derive(Debug)]
pub struct Tasks<T> {
    known: FxHashMap<i32, T>,
    /// New threads that have stopped before their makers reported them.
    early: Vec<Stopped>,
    /// Threads that have ended, the latest last.
    ended: VecDeque<T>,
}

/// The maker of a thread that has stopped early.
#[derive(Debug)]
pub(crate) enum Maker<T> {
    /// It will report the thread.
    Lives,
    /// It has ended. It was this one, if that is known.
    Ended(Option<T>),
}

impl<T> Default for Tasks<T> {
    fn default() -> Self {
        Self {
            known: FxHashMap::default(),
            early: Vec::new(),
            ended: VecDeque::new(),
        }
    }
}

impl<T> Deref for Tasks<T> {
    type Target = FxHashMap<i32, T>;

    fn deref(&self) -> &Self::Target {
        &self.known
    }
}

impl<T> DerefMut for Tasks<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.known
    }
}

impl<T: Task> Tasks<T> {
    /// Remembers a thread that has ended.
    pub fn remember(&mut self, ended: &T) {
        self.ended.push_back(ended.as_maker());
        if self.ended.len() > REMEMBERED {
            self.ended.pop_front();
        }
    }

    /// Those of the remembered threads that have ended, the latest first.
    pub fn ended(&self) -> impl Iterator<Item = &T> {
        self.ended.iter().rev()
    }

    /// The processes of all threads, in ascending order.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        let mut processes: Vec<i32> = self.known.values().map(T::process).collect();
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    /// A thread has stopped of which nothing is known.
    pub(crate) fn is_early(&mut self, thread: Stopped) {
        self.early.push(thread);
    }

    /// Takes a thread that has stopped before its maker reported it, if it has.
    pub(crate) fn take_early(&mut self, tid: i32) -> Option<Stopped> {
        let at = self.early.iter().position(|early| early.tid() == tid)?;
        Some(self.early.swap_remove(at))
    }

    /// Takes all that have stopped early.
    pub(crate) fn take_all_early(&mut self) -> Vec<Stopped> {
        std::mem::take(&mut self.early)
    }

    /// Who has made a thread that has stopped early, and has this mark.
    pub(crate) fn maker(&self, tid: i32, mark: u64) -> Maker<T> {
        let is_followed = |process| self.known.values().any(|task| task.process() == process);
        // A thread was made by a thread of its own process, which will still report it. What it has of a mark is in new
        // memory, or is that of a thread that has ended.
        let process = process_of(tid).filter(|&process| process != tid);
        if process.is_some_and(is_followed) {
            return Maker::Lives;
        }
        let made = |task: &&T| task.mark() == Some(mark);
        if self.known.values().any(|task| made(&task)) {
            return Maker::Lives;
        }
        if let Some(maker) = self.ended().find(made) {
            return Maker::Ended(Some(maker.as_maker()));
        }
        let parent = status(tid, "PPid:").and_then(|parent| parent.parse().ok());
        match parent.is_some_and(is_followed) {
            true => Maker::Lives,
            false => Maker::Ended(None),
        }
    }
}
