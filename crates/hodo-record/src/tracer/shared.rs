//! Threads that share a thread pointer which leads to control blocks: a child made with `vfork`, for which its parent
//! waits, and a child made by `clone` with shared memory but no thread pointer of its own, while its parent runs on.
//!
//! The word there holds the control block of the thread that runs. If several run, they cannot be told apart: the word
//! then holds a block through which nothing is recorded, until only one is left.

use std::rc::Rc;

use anyhow::Result;
use hodo_trace::format::tcb;

use super::{SharedSpace, Thread, Tracer};
use hodo_ptrace::{Memory, Stopped, TargetAddr, look_into};

/// The thread that has made another, and whether it waits until that one has other memory or has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maker {
    pub thread: Stopped,
    pub waits: bool,
}

/// A thread that has made another one with the same memory: its control block, and whether it waits.
#[derive(Debug, Clone, Copy)]
struct Making {
    tid: i32,
    block: u64,
    waits: bool,
}

/// What a new thread inherits from its maker.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Origin {
    /// The maker, if the two share their memory.
    pub maker: Option<Maker>,
    /// Its control block.
    pub tcb: Option<u64>,
    /// The thread is at its first instruction, so its stack ends at its stack pointer.
    pub begins: bool,
}

/// The users of each word that several threads share.
#[derive(Debug, Default)]
pub(super) struct Words(Vec<Word>);

#[derive(Debug)]
struct Word {
    /// The address space, by any number that tells them apart.
    space: usize,
    /// The word's address.
    at: u64,
    /// The threads that use it, the latest last.
    users: Vec<User>,
    /// The block for several running threads, once it was needed.
    mute: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct User {
    tid: i32,
    /// Its own control block.
    block: u64,
    /// The child for which it waits.
    awaits: Option<i32>,
}

/// What a word has to hold now.
#[derive(Debug, PartialEq, Eq)]
struct Written {
    /// The word's address.
    at: u64,
    /// The block; `None`: one through which nothing is recorded, which has yet to be made.
    block: Option<u64>,
    /// Threads that have its memory.
    users: Vec<i32>,
}

impl Word {
    /// The control block that belongs here. `None`: one through which nothing is recorded, which has yet to be made.
    fn block(&self) -> Option<u64> {
        let mut running = self.users.iter().filter(|user| user.awaits.is_none());
        match (running.next(), running.next()) {
            (Some(user), None) => Some(user.block),
            (Some(_), Some(_)) => self.mute,
            // The latest runs first: the others wait for children that still exist.
            (None, _) => self.users.last().map(|user| user.block),
        }
    }

    fn position(&self, tid: i32) -> Option<usize> {
        self.users.iter().position(|user| user.tid == tid)
    }
}

impl Words {
    /// A new thread, which has not run yet, shares the word of its maker. Both are given with their own control blocks.
    /// Returns what the word has to hold.
    fn join(&mut self, (space, at): (usize, u64), maker: Making, child: (i32, u64)) -> Option<u64> {
        let here = |word: &Word| word.space == space && word.at == at;
        let index = self.0.iter().position(here).unwrap_or_else(|| {
            self.0.push(Word {
                space,
                at,
                users: Vec::new(),
                mute: None,
            });
            self.0.len() - 1
        });
        let word = &mut self.0[index];
        let Making { tid, block, waits } = maker;
        let known = word.position(tid).unwrap_or_else(|| {
            word.users.push(User {
                tid,
                block,
                awaits: None,
            });
            word.users.len() - 1
        });
        word.users[known].awaits = waits.then_some(child.0);
        word.users.push(User {
            tid: child.0,
            block: child.1,
            awaits: None,
        });
        word.block()
    }

    /// Sets the block for several threads that run with this word.
    fn set_mute(&mut self, (space, at): (usize, u64), mute: u64) {
        let here = |word: &&mut Word| word.space == space && word.at == at;
        if let Some(word) = self.0.iter_mut().find(here) {
            word.mute = Some(mute);
        }
    }

    /// A thread that has waited for a child runs on: the child has other memory, or has ended.
    fn resume(&mut self, tid: i32) -> Option<Written> {
        let awaits = |word: &Word| word.position(tid).and_then(|at| word.users[at].awaits);
        let index = self.0.iter().position(|word| awaits(word).is_some())?;
        let child = awaits(&self.0[index]);
        for user in &mut self.0[index].users {
            if user.tid == tid {
                user.awaits = None;
            }
        }
        self.without(index, |user| Some(user.tid) == child)
    }

    /// A thread has ended, or has other memory.
    fn part(&mut self, tid: i32) -> Option<Written> {
        let index = self
            .0
            .iter()
            .position(|word| word.position(tid).is_some())?;
        self.without(index, |user| user.tid == tid)
    }

    /// Removes users from a word.
    fn without(&mut self, index: usize, gone: impl Fn(&User) -> bool) -> Option<Written> {
        let word = &mut self.0[index];
        word.users.retain(|user| !gone(user));
        let written = Written {
            at: word.at,
            block: word.block(),
            users: word.users.iter().map(|user| user.tid).collect(),
        };
        if let [] | [User { awaits: None, .. }] = word.users[..] {
            self.0.swap_remove(index);
        }
        Some(written).filter(|written| !written.users.is_empty())
    }

    /// An address space no longer contains anything of ours.
    fn forget(&mut self, space: usize) {
        self.0.retain(|word| word.space != space);
    }
}

/// Shows the stubs of a stopped thread where its control block is, `number` of those in its memory, also if this user
/// may not write that.
///
/// # Errors
/// If the thread is gone.
pub(super) fn set_block(
    thread: Stopped,
    block: u64,
    space: &SharedSpace,
    number: u64,
) -> Result<()> {
    let scratch_page = space.borrow().scratch_page();
    let place = TargetAddr(space.borrow().syscall_place());
    let set = || thread.set_block(block, scratch_page, number);
    look_into(thread, place, set)
}

impl Tracer<'_> {
    /// Makes the stubs of a stopped thread, which has not run since it was made, find its control block: control block
    /// `number`, at `block` in its memory. `maker`: its maker, if the two share their memory.
    pub(super) fn lead(
        &mut self,
        child: Stopped,
        (number, block): (u64, u64),
        space: &SharedSpace,
        maker: Option<Maker>,
    ) -> Result<()> {
        let scratch_page = space.borrow().scratch_page();
        let shared = match maker {
            Some(maker) => {
                let word = child.place_of_block(scratch_page)?;
                let makers = maker.thread.place_of_block(scratch_page)?;
                word.filter(|_| word == makers).zip(Some(maker))
            }
            None => None,
        };
        let Some((at, maker)) = shared else {
            return set_block(child, block, space, number);
        };
        let known = match self
            .threads
            .get(&maker.thread.tid())
            .and_then(Thread::block)
        {
            Some(known) => known,
            // The word is that of both.
            None => {
                let place = TargetAddr(space.borrow().syscall_place());
                look_into(child, place, || child.block())?
            }
        };
        let key = (Rc::as_ptr(space) as usize, at);
        let making = Making {
            tid: maker.thread.tid(),
            block: known,
            waits: maker.waits,
        };
        let found = match self.words.join(key, making, (child.tid(), block)) {
            Some(found) => found,
            None => {
                let mute = self.mute(child, space)?;
                self.words.set_mute(key, mute);
                mute
            }
        };
        set_block(child, found, space, number)?;
        if found == block {
            return Ok(());
        }
        // Nobody reports the end of a process that a debugger starts.
        let long = match space.borrow().is_debugger() {
            true => "any more",
            false => "while it runs",
        };
        let text = format!(
            "shares the thread pointer of {}: calls of both are not recorded {long}",
            maker.thread
        );
        self.remark(child.tid(), &text)?;
        if self.options.verbose == 0 {
            warn_user!("hodo: {child}: {text}");
        }
        Ok(())
    }

    /// The address, in a stopped thread's address space, of a control block for several threads at once, through which
    /// nothing is recorded.
    fn mute(&mut self, stopped: Stopped, space: &SharedSpace) -> Result<u64> {
        if let Some(mute) = space.borrow().mute_block() {
            return Ok(mute);
        }
        let mut init = self.tcb_init(stopped.tid(), space, None);
        init.silent = true;
        init.fixed = true;
        let mute = match self.alloc_tcb() {
            Some(number) => {
                self.session.events.init_tcb(number, &init);
                init.trace.start + number * tcb::SIZE
            }
            None => self.private_block(stopped, space, &init)?,
        };
        // It never gets another use: a thread may be about to use it when it is the only one again.
        space.borrow_mut().set_mute_block(mute);
        Ok(mute)
    }

    /// The child for which a stopped thread was waiting has other memory, or has ended: the thread gets its control
    /// block back.
    pub(super) fn take_back(&mut self, stopped: Stopped) -> Result<()> {
        let tid = stopped.tid();
        let Some(mut written) = self.words.resume(tid) else {
            return Ok(());
        };
        let space = self.threads.get(&tid).and_then(|t| t.space.clone());
        if let Some(space) = space.filter(|_| written.block.is_none()) {
            let mute = self.mute(stopped, &space)?;
            (self.words).set_mute((Rc::as_ptr(&space) as usize, written.at), mute);
            written.block = Some(mute);
        }
        written.write();
        Ok(())
    }

    /// A thread has ended, or has other memory: the threads with which it shared its thread pointer get their control
    /// blocks back.
    pub(super) fn part(&mut self, tid: i32) {
        while let Some(written) = self.words.part(tid) {
            written.write();
        }
    }

    /// An address space no longer contains anything of ours.
    pub(super) fn forget_words(&mut self, space: &SharedSpace) {
        self.words.forget(Rc::as_ptr(space) as usize);
    }
}

impl Written {
    fn write(self) {
        let bytes = self.block.unwrap_or(0).to_le_bytes();
        // A thread that is gone, too, no longer needs it.
        let _ = self.users.iter().any(|&user| {
            let memory = Memory::open(user);
            memory.is_ok_and(|memory| memory.write(TargetAddr(self.at), &bytes).is_ok())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD: (usize, u64) = (1, 0x3F_0000);
    const MUTE: u64 = 9;

    /// Threads have control blocks with ten times their numbers.
    struct Memory {
        words: Words,
        found: Option<u64>,
    }

    impl Memory {
        fn new() -> Self {
            Self {
                words: Words::default(),
                found: None,
            }
        }

        fn block(&mut self, block: Option<u64>) -> u64 {
            let block = block.unwrap_or(MUTE);
            self.words.set_mute(WORD, MUTE);
            self.found = Some(block);
            block
        }

        fn made(&mut self, tid: i32, child: i32, waits: bool) -> u64 {
            let own = |tid: i32| 10 * u64::from(tid.cast_unsigned());
            let maker = Making {
                tid,
                block: own(tid),
                waits,
            };
            let block = self.words.join(WORD, maker, (child, own(child)));
            self.block(block)
        }

        fn shares(&mut self, tid: i32, child: i32) -> u64 {
            self.made(tid, child, false)
        }

        fn vforks(&mut self, tid: i32, child: i32) -> u64 {
            self.made(tid, child, true)
        }

        fn written(&mut self, written: Option<Written>) -> Option<u64> {
            let written = written?;
            assert_eq!(written.at, WORD.1);
            Some(self.block(written.block))
        }

        fn parts(&mut self, tid: i32) -> Option<u64> {
            let written = self.words.part(tid);
            self.written(written)
        }

        fn resumes(&mut self, tid: i32) -> Option<u64> {
            let written = self.words.resume(tid);
            self.written(written)
        }
    }

    #[test]
    fn who_waits_leaves_the_word_to_its_child() {
        let mut memory = Memory::new();
        assert_eq!(memory.vforks(1, 2), 20);
        // The child has executed a program: its maker reports that once, and so does the child.
        assert_eq!(memory.resumes(1), Some(10));
        assert_eq!(memory.parts(2), None);
        assert_eq!(memory.vforks(1, 3), 30);
        assert_eq!(memory.parts(3), Some(10));
        assert_eq!(memory.resumes(1), Some(10));
        assert!(memory.words.0.is_empty());
    }

    #[test]
    fn several_that_run_record_nothing() {
        let mut memory = Memory::new();
        assert_eq!(memory.shares(1, 2), MUTE);
        assert_eq!(memory.shares(2, 3), MUTE);
        assert_eq!(memory.parts(1), Some(MUTE));
        assert_eq!(memory.parts(3), Some(20));
        assert_eq!(memory.shares(2, 4), MUTE);
        assert_eq!(memory.parts(2), Some(40));
        assert_eq!(memory.parts(4), None);
        assert!(memory.words.0.is_empty());
    }

    #[test]
    fn who_waits_beside_another_gets_the_word_only_when_that_is_gone() {
        let mut memory = Memory::new();
        assert_eq!(memory.shares(1, 2), MUTE);
        assert_eq!(memory.vforks(1, 3), MUTE);
        // Only vfork's child runs now.
        assert_eq!(memory.parts(2), Some(30));
        assert_eq!(memory.resumes(1), Some(10));
        assert_eq!(memory.shares(1, 4), MUTE);
        assert_eq!(memory.vforks(1, 5), MUTE);
        assert_eq!(memory.resumes(1), Some(MUTE));
        assert_eq!(memory.parts(5), None);
        assert_eq!(memory.parts(4), Some(10));
        assert!(memory.words.0.is_empty());
    }

    #[test]
    fn children_of_children_go_on_in_turn() {
        let mut memory = Memory::new();
        assert_eq!(memory.vforks(1, 2), 20);
        assert_eq!(memory.vforks(2, 3), 30);
        assert_eq!(memory.parts(3), Some(20));
        assert_eq!(memory.resumes(2), Some(20));
        assert_eq!(memory.resumes(1), Some(10));
        // A child that was killed while it waited for its own child.
        assert_eq!(memory.vforks(1, 4), 40);
        assert_eq!(memory.vforks(4, 5), 50);
        assert_eq!(memory.parts(4), Some(50));
        assert_eq!(memory.words.resume(1).expect("two run").users, [1, 5]);
        assert_eq!(memory.parts(5), Some(10));
        assert!(memory.words.0.is_empty());
    }

    #[test]
    fn words_of_other_memories_are_others() {
        let mut memory = Memory::new();
        assert_eq!(memory.vforks(1, 2), 20);
        let maker = Making {
            tid: 6,
            block: 60,
            waits: true,
        };
        let other = (2, WORD.1);
        assert_eq!(memory.words.join(other, maker, (7, 70)), Some(70));
        assert_eq!(memory.resumes(1), Some(10));
        memory.words.forget(2);
        assert!(memory.words.0.is_empty());
    }
}
