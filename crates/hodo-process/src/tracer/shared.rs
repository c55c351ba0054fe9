//! Threads that run beside each other with one thread pointer, where that leads to control blocks: what was made by `clone` with
//! shared memory, but without a thread pointer of its own, while its maker goes on.
//!
//! None of them can be told from the others. So they get a block by which nothing is recorded, until the maker is alone again.

use anyhow::Result;
use hodo_trace::format::tcb;

use super::{Thread, Tracer};
use crate::machine;
use crate::remote::Memory;

/// Threads that have one thread pointer.
#[derive(Debug)]
pub(super) struct Shared {
    /// Where the word is that leads to their control block.
    word: u64,
    /// Who had it first, and its control block.
    maker: i32,
    block: u64,
    /// The others.
    others: Vec<i32>,
}

impl Tracer<'_> {
    /// `child` has got its control block, and has not run yet: if that has become its maker's, too, nothing is recorded by it.
    pub(super) fn share(&mut self, parent: i32, child: i32) -> Result<()> {
        let Some(word) = machine::shared_word(parent, child)? else {
            return Ok(());
        };
        let Some(block) = self.threads.get(&parent).and_then(Thread::block) else {
            return Ok(());
        };
        if let Some(number) = self.threads.get(&child).and_then(|thread| thread.tcb) {
            let events = &self.session.events;
            events.put_tcb_words(number, tcb::MAX_CHUNKS, &[0]);
        }
        let text = format!(
            "shares the thread pointer of {parent}: calls of both are not recorded while it runs"
        );
        self.remark(child, &text)?;
        if self.options.verbose == 0 {
            eprintln!("hodo: {child}: {text}");
        }
        let is_of =
            |shared: &&mut Shared| shared.maker == parent || shared.others.contains(&parent);
        match self.shared.iter_mut().find(is_of) {
            Some(shared) => shared.others.push(child),
            None => self.shared.push(Shared {
                word,
                maker: parent,
                block,
                others: vec![child],
            }),
        }
        Ok(())
    }

    /// The control block that a thread has to use, if it has its thread pointer together with others.
    pub(super) fn shared_block(&self, tid: i32) -> Option<u64> {
        let shared = self.shared.iter().find(|shared| shared.maker == tid)?;
        self.block_of(*shared.others.last()?)
    }

    fn block_of(&self, tid: i32) -> Option<u64> {
        self.threads.get(&tid).and_then(Thread::block)
    }

    /// A thread has ended, or has another memory: those it has shared its thread pointer with get the control block of
    /// another, and the last one its own.
    pub(super) fn part(&mut self, tid: i32) {
        let is_of = |shared: &Shared| shared.maker == tid || shared.others.contains(&tid);
        let Some(at) = self.shared.iter().position(is_of) else {
            return;
        };
        let shared = &mut self.shared[at];
        shared.others.retain(|&other| other != tid);
        if shared.maker == tid {
            // Nobody gets its block.
            shared.maker = 0;
        }
        let (word, maker, block) = (shared.word, shared.maker, shared.block);
        let left = shared.others.last().copied();
        if left.is_none() {
            self.shared.swap_remove(at);
        }
        let (user, block) = match left {
            Some(other) => (other, self.block_of(other)),
            None => (maker, Some(block)),
        };
        // Who is gone, too, needs it no more.
        if let Some(block) = block
            && user != 0
            && let Ok(memory) = Memory::open(user)
        {
            let _ = memory.write(word, &block.to_le_bytes());
        }
    }
}
