//! Threads that have several numbers: if parts of a run are observed, a thread has another number in each. To those who
//! compare what threads do, it is one.

use rustc_hash::FxHashMap;

/// Which numbers are those of the same thread.
#[derive(Debug, Default)]
pub(crate) struct Same {
    /// By the kernel's numbers of process and thread.
    first: FxHashMap<(i32, i32), u32>,
    /// The first number of each thread, by number.
    numbers: Vec<u32>,
}

impl Same {
    /// A thread is observed from here on under this number. The kernel gives its numbers to other threads at last: in
    /// different parts of a long run, two may be taken for one.
    pub(crate) fn add(&mut self, thread: u32, process: i32, tid: i32) {
        let first = *self.first.entry((process, tid)).or_insert(thread);
        let known = self.numbers.len() as u32;
        self.numbers.extend(known..=thread);
        self.numbers[thread as usize] = first;
    }

    /// The first number that the thread had which has this one.
    pub(crate) fn first(&self, thread: u32) -> u32 {
        let first = self.numbers.get(thread as usize);
        first.copied().unwrap_or(thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_first_number() {
        let mut same = Same::default();
        for (thread, process, tid) in [(0, 7, 7), (1, 7, 8), (4, 7, 8), (5, 9, 8), (2, 7, 7)] {
            same.add(thread, process, tid);
        }
        let first: Vec<u32> = (0..7).map(|thread| same.first(thread)).collect();
        assert_eq!(first, [0, 1, 0, 3, 1, 5, 6]);
    }
}
