//! The calls in which threads are.

use std::sync::Arc;

use hodo_dbi::{Access, Block, Kind, Transfer};
use rustc_hash::FxHashMap;

use crate::places::InFile;

/// A call that is further than this from those before it is on another stack: that of a signal handler, or of a
/// coroutine.
const FAR: u64 = 1 << 20;
/// The maximum number of stacks of a thread that are known at once.
const MOST_STACKS: usize = 64;
/// The maximum number of contexts. Calls in others count as their callers.
const MOST_CONTEXTS: usize = 1 << 20;

/// The context of no process.
const NONE: u32 = 0;

/// A call that has not returned.
#[derive(Debug, Clone, Copy)]
struct Frame {
    /// Where the stack has the return address.
    stack: u64,
    context: u32,
}

/// Calls one in the other, seen from the innermost one.
#[derive(Debug, Clone)]
struct Context {
    /// The context of the caller.
    outer: u32,
    /// The instruction that calls. `None`: it is the context of a whole process.
    call: Option<(Arc<Block>, u16)>,
}

#[derive(Debug, Clone, Default)]
struct Thread {
    /// The context of its process.
    process: u32,
    /// The one that was used last is the last one.
    stacks: Vec<Vec<Frame>>,
}

/// Follows the calls of threads.
#[derive(Debug, Clone, Default)]
pub struct Stacks {
    threads: Vec<Thread>,
    /// By number, from 1 on.
    contexts: Vec<Context>,
    /// By the context of the caller, and the address of the instruction that calls.
    numbers: FxHashMap<(u32, u64), u32>,
    /// The contexts of processes.
    processes: FxHashMap<i32, u32>,
}

impl Stacks {
    /// A thread has begun.
    pub fn thread(&mut self, thread: u32, process: i32) {
        let context = Context {
            outer: NONE,
            call: None,
        };
        let contexts = &mut self.contexts;
        let number = *self.processes.entry(process).or_insert_with(|| {
            contexts.push(context);
            contexts.len() as u32
        });
        self.of(thread).process = number;
    }

    /// A thread begins in the calls in which another one is.
    pub fn forked(&mut self, thread: u32, maker: u32) {
        let stacks = self.of(maker).stacks.clone();
        self.of(thread).stacks = stacks;
    }

    /// A thread has executed another program.
    pub fn executed_program(&mut self, thread: u32, process: i32) {
        self.processes.remove(&process);
        self.of(thread).stacks.clear();
        self.thread(thread, process);
    }

    fn of(&mut self, thread: u32) -> &mut Thread {
        let index = thread as usize;
        if self.threads.len() <= index {
            self.threads.resize_with(index + 1, Thread::default);
        }
        &mut self.threads[index]
    }

    /// A thread has executed the first `upto` instructions of a block.
    #[inline]
    pub fn executed(&mut self, thread: u32, block: &Arc<Block>, upto: usize, accesses: &[Access]) {
        // Calls and returns end blocks.
        let Some(last) = upto.checked_sub(1) else {
            return;
        };
        let transfer = block.insns[last].transfer;
        if matches!(
            transfer,
            Transfer::Call | Transfer::IndirectCall | Transfer::Return
        ) {
            self.follow(thread, (block, last as u16), transfer, accesses);
        }
    }

    fn follow(
        &mut self,
        thread: u32,
        (block, insn): (&Arc<Block>, u16),
        transfer: Transfer,
        accesses: &[Access],
    ) {
        let calls = transfer != Transfer::Return;
        let kind = if calls { Kind::Store } else { Kind::Load };
        let own = |access: &&Access| access.insn == insn && access.kind == kind;
        let Some(access) = accesses.iter().rev().find(own) else {
            return;
        };
        let frames = self.stack(thread, access.address);
        while frames
            .pop_if(|frame| frame.stack <= access.address)
            .is_some()
        {}
        if calls {
            let outer = self.now(thread);
            let context = self.inner(outer, block, insn);
            self.stack(thread, access.address).push(Frame {
                stack: access.address,
                context,
            });
        }
    }

    /// The stack of a thread that has an address.
    fn stack(&mut self, thread: u32, address: u64) -> &mut Vec<Frame> {
        let stacks = &mut self.of(thread).stacks;
        let is_near = |frames: &Vec<Frame>| {
            let last = frames.last();
            last.is_none_or(|frame| frame.stack.abs_diff(address) <= FAR)
        };
        if !stacks.last().is_some_and(is_near) {
            match stacks.iter().rposition(is_near) {
                Some(found) => {
                    let found = stacks.remove(found);
                    stacks.push(found);
                }
                None => {
                    if stacks.len() >= MOST_STACKS {
                        stacks.remove(0);
                    }
                    stacks.push(Vec::new());
                }
            }
        }
        let last = stacks.len() - 1;
        &mut stacks[last]
    }

    /// The context of a call.
    fn inner(&mut self, outer: u32, block: &Arc<Block>, insn: u16) -> u32 {
        let pc = block.insns[usize::from(insn)].pc;
        if let Some(&known) = self.numbers.get(&(outer, pc)) {
            return known;
        }
        if self.contexts.len() >= MOST_CONTEXTS {
            return outer;
        }
        self.contexts.push(Context {
            outer,
            call: Some((Arc::clone(block), insn)),
        });
        let number = self.contexts.len() as u32;
        self.numbers.insert((outer, pc), number);
        number
    }

    /// The context in which a thread is.
    #[must_use]
    pub fn now(&self, thread: u32) -> u32 {
        let Some(thread) = self.threads.get(thread as usize) else {
            return NONE;
        };
        let last = thread.stacks.last().and_then(|frames| frames.last());
        last.map_or(thread.process, |frame| frame.context)
    }

    /// The context in which a thread is that has its return address here. Calls may have returned unseen.
    pub fn at(&mut self, thread: u32, stack: u64) -> u32 {
        let frames = self.stack(thread, stack);
        while frames.pop_if(|frame| frame.stack < stack).is_some() {}
        self.now(thread)
    }

    /// The calls of a context, the innermost first: the instructions that call. `None`: one is from no file.
    pub fn calls(&self, context: u32) -> impl Iterator<Item = Option<InFile>> {
        let get = |number: u32| self.contexts.get((number as usize).checked_sub(1)?);
        let all = std::iter::successors(get(context), move |one| get(one.outer));
        let calls = all.filter_map(|one| one.call.as_ref());
        calls.map(|(block, insn)| InFile::of(block, usize::from(*insn)))
    }
}
