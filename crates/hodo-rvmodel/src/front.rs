//! A front end: what fetches instructions and guesses which comes next. It counts; it does not know time.
//!
//! It has a branch target buffer, with two-bit counters for conditional branches that also go by the last four of them,
//! a stack of return addresses, and a table of the values that `lrw2spc` loaded. All of them go by the real pc. Buffer
//! and table have no limit: what they mispredict, any of their size would, and addresses do not collide by chance.

use std::collections::BTreeMap;

/// Bytes that are fetched at once: an aligned block.
pub const BLOCK: u64 = 16;
/// Entries of the stack of return addresses.
const RETURNS: usize = 8;

/// What has been counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Executed instructions.
    pub instructions: u64,
    /// Their bytes, with those of literals that the fetch unit reads.
    pub bytes: u64,
    /// Fetched blocks.
    pub fetches: u64,
    /// Wrong guesses of the next address.
    pub mispredictions: u64,
    /// Traps, each of which empties the pipeline on the way in and on the way back.
    pub traps: u64,
    /// Loads and stores.
    pub accesses: u64,
    /// Stores to the 4 KiB below the stack pointer, where a signal handler or an interrupt may overwrite them.
    pub exposed: u64,
    /// Instructions that needed a shadow pc that was not known yet.
    pub waits: u64,
}

impl std::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            instructions: self.instructions - other.instructions,
            bytes: self.bytes - other.bytes,
            fetches: self.fetches - other.fetches,
            mispredictions: self.mispredictions - other.mispredictions,
            traps: self.traps - other.traps,
            accesses: self.accesses - other.accesses,
            exposed: self.exposed - other.exposed,
            waits: self.waits - other.waits,
        }
    }
}

/// How an instruction changes the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// It goes on with the next one.
    Next,
    /// A conditional branch.
    Branch,
    /// A jump.
    Jump,
    /// A jump that leaves this return address in a link register.
    Call(u64),
    /// A jump through a link register.
    Return,
    /// A jump through one link register that leaves a return address in the other.
    ReturnAndCall(u64),
    /// The return from a trap, which nobody guesses.
    Resume,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    target: u64,
    /// 2 and 3: taken.
    counter: u8,
    returns: bool,
}

/// The front end.
#[derive(Debug, Clone, Default)]
pub struct FrontEnd {
    targets: BTreeMap<(u64, u8), Entry>,
    /// Whether the last branches were taken, one bit each.
    history: u8,
    returns: Vec<u64>,
    shadows: BTreeMap<u64, u64>,
    block: Option<u64>,
    /// What it has counted.
    pub counts: Counts,
}

impl FrontEnd {
    /// These bytes are needed.
    pub fn fetch(&mut self, at: u64, len: u64) {
        self.counts.bytes += len;
        for block in at / BLOCK..=at.wrapping_add(len - 1) / BLOCK {
            if self.block != Some(block) {
                self.block = Some(block);
                self.counts.fetches += 1;
            }
        }
    }

    /// The pipeline is emptied.
    pub fn flush(&mut self) {
        self.block = None;
    }

    /// An instruction of `len` bytes at `pc` has been executed, and `next` comes after it.
    pub fn executed(&mut self, pc: u64, len: u64, flow: Flow, next: u64) {
        self.counts.instructions += 1;
        if flow == Flow::Resume {
            return self.flush();
        }
        let after = pc.wrapping_add(len);
        let key = match flow {
            Flow::Branch => (pc, self.history),
            _ => (pc, 0),
        };
        let entry = self.targets.get(&key).copied();
        let returned = match flow {
            Flow::Return | Flow::ReturnAndCall(_) => self.returns.pop(),
            _ => None,
        };
        let guess = match entry {
            Some(entry) if entry.returns => returned.unwrap_or(entry.target),
            Some(entry) if entry.counter >= 2 => entry.target,
            _ => after,
        };
        if guess != next {
            self.counts.mispredictions += 1;
            self.flush();
        } else if next != after {
            // The guess was right, but another block is needed unless it is the same one.
            self.block = self.block.filter(|block| *block == next / BLOCK);
        }
        if let Flow::Call(link) | Flow::ReturnAndCall(link) = flow {
            if self.returns.len() == RETURNS {
                self.returns.remove(0);
            }
            self.returns.push(link);
        }
        self.learn(key, entry, flow, (after, next));
    }

    fn learn(
        &mut self,
        key: (u64, u8),
        entry: Option<Entry>,
        flow: Flow,
        (after, next): (u64, u64),
    ) {
        let taken = match flow {
            Flow::Next | Flow::Resume => return,
            Flow::Branch => next != after,
            _ => true,
        };
        if flow == Flow::Branch {
            self.history = (self.history << 1 | u8::from(taken)) & 0xF;
        }
        let counter = match (entry, taken) {
            (Some(entry), true) => (entry.counter + 1).min(3),
            (Some(entry), false) => entry.counter.saturating_sub(1),
            (None, true) => 2,
            // A branch that was never taken needs no entry.
            (None, false) => return,
        };
        let target = match (entry, taken) {
            (Some(entry), false) => entry.target,
            _ => next,
        };
        let returns = matches!(flow, Flow::Return | Flow::ReturnAndCall(_));
        let entry = Entry {
            target,
            counter,
            returns,
        };
        self.targets.insert(key, entry);
    }

    /// An `lrw2spc` has loaded this value. Returns whether that was expected.
    pub fn shadowed(&mut self, pc: u64, value: u64) -> bool {
        self.shadows.insert(pc, value) == Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missed(front: &mut FrontEnd, steps: &[(u64, Flow, u64)]) -> u64 {
        let before = front.counts.mispredictions;
        for &(pc, flow, next) in steps {
            front.executed(pc, 4, flow, next);
        }
        front.counts.mispredictions - before
    }

    #[test]
    fn jumps_and_returns_are_learned() {
        let mut front = FrontEnd::default();
        let round = [
            (0x100, Flow::Call(0x104), 0x800),
            (0x800, Flow::Return, 0x104),
            (0x104, Flow::Jump, 0x100),
        ];
        assert_eq!(missed(&mut front, &round), 3);
        assert_eq!(missed(&mut front, &round), 0);
        // The same function, called from elsewhere: only the new call is a surprise.
        let other = [
            (0x200, Flow::Call(0x204), 0x800),
            (0x800, Flow::Return, 0x204),
        ];
        assert_eq!(missed(&mut front, &other), 1);
    }

    #[test]
    fn a_jump_through_a_link_register_loses_a_return_address() {
        let mut front = FrontEnd::default();
        let round = [
            (0x100, Flow::Call(0x104), 0x800),
            // A long jump through `t0`, which looks like a return.
            (0x800, Flow::Return, 0x910),
            (0x910, Flow::Return, 0x104),
            (0x104, Flow::Jump, 0x100),
        ];
        missed(&mut front, &round);
        // The stack is empty at the second return, so its last target is the guess.
        assert_eq!(missed(&mut front, &round), 1);
    }

    #[test]
    fn branches_are_learned_with_what_came_before() {
        let mut front = FrontEnd::default();
        let taken = (0x10, Flow::Branch, 0x40);
        let not = (0x10, Flow::Branch, 0x14);
        assert_eq!(missed(&mut front, &[not; 20]), 0);
        assert_eq!(missed(&mut front, &[taken; 20]), 5);
        // They alternate.
        missed(&mut front, &[taken, not].repeat(10));
        assert_eq!(missed(&mut front, &[taken, not].repeat(10)), 0);
    }

    #[test]
    fn blocks_are_fetched_once() {
        let mut front = FrontEnd::default();
        for pc in (0x100..0x120).step_by(4) {
            front.fetch(pc, 4);
        }
        assert_eq!((front.counts.fetches, front.counts.bytes), (2, 32));
        front.fetch(0x11E, 4);
        assert_eq!(front.counts.fetches, 3);
        front.flush();
        front.fetch(0x122, 2);
        assert_eq!(front.counts.fetches, 4);
    }
}
