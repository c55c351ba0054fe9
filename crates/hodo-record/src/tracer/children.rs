//! New threads and processes: which ones are followed, and which are released.

use hodo_follow::Made;
use hodo_inject::site_writer;
use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use hodo_trace::format::tcb;

use super::shared::{Maker, Origin, set_block};
use super::{SharedSpace, Thread, Tracer};
use hodo_ptrace::Stopped;

impl Tracer<'_> {
    /// `--no-follow`: releases a child process. It stays under control only while it shares its parent's memory (the
    /// memory of its maker).
    pub(super) fn let_go(
        &mut self,
        child: Stopped,
        space: &SharedSpace,
        origin: Origin,
    ) -> Result<()> {
        let tid = child.tid();
        let Origin {
            maker,
            tcb: inherited,
            ..
        } = origin;
        let shares_memory = maker.is_some();
        // After an attach, nothing may be left in children either.
        if !self.options.attach.is_empty()
            && !shares_memory
            && let Ok(true) = hodo_inject::leave::leave_child(child, space)
        {
            return child.detach();
        }
        let mut init = self.tcb_init(tid, space, inherited);
        init.silent = true;
        // Its calls are no longer traced, but those that are open return through their stubs. A child whose memory
        // others may not access stays under control.
        if shares_memory || site_writer::revert(tid, &space.borrow()).is_err() {
            let Some(number) = self.alloc_tcb() else {
                self.crowded(child, tid, space, init, maker)?;
                return child.cont(0);
            };
            self.session.events.init_tcb(number, &init);
            let block = init.trace.start + number * tcb::SIZE;
            self.lead(child, (number, block), space, maker)?;
            if space.borrow().is_debugger() {
                self.remark(tid, "the child of a debugger: it is not traced")?;
                // Its control block stays in use, because nobody reports the child's end.
                return child.detach();
            }
            let thread = Thread {
                tcb: Some(number),
                space: Some(Rc::clone(space)),
                ..Thread::untraced(tid)
            };
            self.threads.insert(tid, thread);
            return child.cont(0);
        }
        if space.borrow().is_debugger() {
            self.remark(tid, "the child of a debugger: it is not traced")?;
        }
        let number = match self.silent.get(&init.trace.start) {
            Some(&number) => Some(number),
            None => self.alloc_tcb(),
        };
        let Some(number) = number else {
            self.crowded(child, tid, space, init, maker)?;
            self.threads.remove(&tid);
            return child.detach();
        };
        if self.silent.insert(init.trace.start, number).is_none() {
            self.session.events.init_tcb(number, &init);
        }
        let block = init.trace.start + number * tcb::SIZE;
        set_block(child, block, space, number)?;
        child.detach()
    }

    /// Takes over a new thread or process, which is stopped, and lets it run in any case. `beside`: its maker, if that
    /// is there and also stopped.
    pub(super) fn take_over(
        &mut self,
        child: Stopped,
        maker: Option<&Thread>,
        made: Made,
        beside: Option<Stopped>,
    ) -> Result<()> {
        let tid = child.tid();
        let untraced = Thread::untraced(beside.map_or(tid, Stopped::tid));
        let maker = maker.unwrap_or(&untraced);
        let waits = made.is_awaited();
        let done = self.follow(
            child,
            maker,
            made,
            beside.map(|thread| Maker { thread, waits }),
        );
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.awaited = beside.filter(|_| waits).map(Stopped::tid);
        }
        if done.is_err() {
            self.threads
                .entry(tid)
                .or_insert_with(|| Thread::untraced(tid));
            let _ = child.cont(0);
        }
        done
    }

    fn follow(
        &mut self,
        child: Stopped,
        maker: &Thread,
        made: Made,
        beside: Option<Maker>,
    ) -> Result<()> {
        let tid = child.tid();
        let (shares_memory, is_thread) = (made.shares_memory(), made.is_thread());
        let &Thread { pid, task, tcb, .. } = maker;
        let Some(space) = maker.space.clone() else {
            self.threads
                .insert(tid, Thread::untraced(if is_thread { pid } else { tid }));
            return child.cont(0);
        };
        let origin = Origin {
            maker: beside.filter(|_| shares_memory),
            tcb,
            begins: is_thread,
        };
        let space = if shares_memory {
            space
        } else {
            let own = space.borrow().forked(child.memory());
            Rc::new(RefCell::new(own))
        };
        // A process has only one tracer: processes that a debugger starts belong to the debugger.
        let debugger = space.borrow().is_debugger();
        if (self.options.no_follow || debugger) && !is_thread {
            if !shares_memory {
                maker.contexts.of_child().give_up(child)?;
            }
            return self.let_go(child, &space, origin);
        }
        let (kind, child_pid) = if is_thread {
            ("thread", pid)
        } else {
            ("fork", tid)
        };
        self.begin_task(child, child_pid, kind, task, &space, origin)?;
        if !shares_memory && let Some(thread) = self.threads.get_mut(&tid) {
            // It runs in the same signal handlers.
            thread.contexts = maker.contexts.of_child();
            thread.calls = maker.calls.inherited();
            self.turn(&space, maker.contexts.share());
        }
        self.go(child, 0)
    }
}
