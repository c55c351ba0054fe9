//! What threads do at the same time.
//!
//! The records of all threads of a process are taken at the same times, one thread after the other. What they did from
//! one of these times to the next is a round. Nobody knows the order of it any more, so it is assumed that each thread
//! went on steadily.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hodo_dbi::Access;

/// This many instructions of a thread come together: about as long as a line needs from one processor to another.
const TOGETHER: u64 = 100;
/// A round has at most about this many blocks and accesses.
const MOST: usize = 1 << 23;

/// A block that was executed.
#[derive(Debug, Clone, Copy)]
struct Step {
    block: u32,
    upto: u32,
    accesses: u32,
}

/// What a thread has done in a round.
#[derive(Debug, Default)]
struct Part {
    thread: u32,
    steps: Vec<Step>,
    accesses: Vec<Access>,
    instructions: u64,
}

/// Puts together what threads did in a round.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    parts: Vec<Part>,
    /// Blocks and accesses of all parts.
    size: usize,
}

impl Rounds {
    /// What a thread did comes next. Returns whether a round has ended before that.
    pub(crate) fn begin(&mut self, thread: u32) -> bool {
        self.parts.iter().any(|part| part.thread == thread)
    }

    /// Whether a round must end because it would take too much memory.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.size > MOST
    }

    /// A thread has executed a block.
    #[inline]
    pub(crate) fn add(&mut self, thread: u32, block: u32, upto: usize, accesses: &[Access]) {
        if self.parts.last().is_none_or(|part| part.thread != thread) {
            // What it did before may come once more, with the end of its last block.
            let place = self.parts.iter().position(|part| part.thread == thread);
            let part = place.map(|place| self.parts.remove(place));
            self.parts.push(part.unwrap_or_else(|| Part {
                thread,
                ..Part::default()
            }));
        }
        let Some(part) = self.parts.last_mut() else {
            return;
        };
        part.steps.push(Step {
            block,
            upto: upto as u32,
            accesses: accesses.len() as u32,
        });
        part.accesses.extend_from_slice(accesses);
        part.instructions += upto as u64;
        self.size += 1 + accesses.len();
    }

    /// Ends a round: `execute` receives each thread, block, number of instructions, and their accesses.
    pub(crate) fn end(&mut self, mut execute: impl FnMut(u32, u32, usize, &[Access])) {
        self.size = 0;
        let parts = std::mem::take(&mut self.parts);
        let mut at: Vec<(usize, usize, u64)> = vec![(0, 0, 0); parts.len()];
        // The part that has come least far is next.
        let mut next: BinaryHeap<Reverse<(u64, usize)>> =
            (0..parts.len()).map(|part| Reverse((0, part))).collect();
        while let Some(Reverse((_, number))) = next.pop() {
            let part = &parts[number];
            let (step, access, done) = &mut at[number];
            let until = *done + TOGETHER;
            while let Some(&one) = part.steps.get(*step)
                && *done < until
            {
                let accesses = &part.accesses[*access..*access + one.accesses as usize];
                execute(part.thread, one.block, one.upto as usize, accesses);
                *step += 1;
                *access += accesses.len();
                // A repeated instruction has steps without instructions.
                *done += u64::from(one.upto).max(1);
            }
            if *step < part.steps.len() {
                let share = (u128::from(*done) << 32) / u128::from(part.instructions.max(1));
                next.push(Reverse((share as u64, number)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hodo_dbi::Kind;

    #[test]
    fn threads_go_on_steadily() {
        let mut rounds = Rounds::default();
        let access = |address| Access {
            address,
            size: 8,
            insn: 0,
            kind: Kind::Load,
            offset: 0,
        };
        assert!(!rounds.begin(7));
        for number in 0..100 {
            rounds.add(7, 1, 10, &[access(number)]);
        }
        assert!(!rounds.begin(9));
        for number in 0..200 {
            rounds.add(9, 2, 20, &[access(number), access(number)]);
        }
        assert!(rounds.begin(7) && rounds.begin(9) && !rounds.begin(8));
        let mut heard: Vec<(u32, u64)> = Vec::new();
        rounds.end(|thread, block, upto, accesses| {
            let (of, long, count) = if thread == 7 { (1, 10, 1) } else { (2, 20, 2) };
            assert_eq!((block, upto, accesses.len()), (of, long, count));
            heard.push((thread, accesses[0].address));
        });
        assert!(!rounds.begin(7));
        assert_eq!(heard.len(), 300);
        let mut now = [0, 0];
        for (thread, address) in heard {
            let which = usize::from(thread == 9);
            assert_eq!(now[which], address);
            now[which] += 1;
            // One in ten, up to what comes together.
            assert!((2 * now[0]).abs_diff(now[1]) <= 25, "{now:?}");
        }
    }
}
