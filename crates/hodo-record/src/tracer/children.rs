//! New threads and processes: which ones are followed, and which are released.

use hodo_inject::site_writer;
use hodo_ptrace::TargetAddr;
use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use hodo_trace::format::tcb;

use super::shared::{Maker, Origin};
use super::{SharedSpace, Thread, Tracer};
use hodo_ptrace as ptrace;
use hodo_ptrace::{Report, Stopped};

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
        if self.options.attach.is_some()
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
        child.set_block(
            init.trace.start + number * tcb::SIZE,
            space.borrow().scratch_page(),
            number,
        )?;
        child.detach()
    }

    /// A new thread or process.
    pub(super) fn child(&mut self, parent: Stopped, child: i32, event: i32) -> Result<()> {
        if self.threads.contains_key(&child) {
            return Ok(());
        }
        // Its own first stop may have been seen already.
        let early = (self.early.iter()).position(|early| early.tid() == child);
        let child = match early {
            Some(at) => self.early.swap_remove(at),
            None => match Report::of(child, true)
                .ok()
                .flatten()
                .and_then(Report::stopped)
            {
                Some(child) => child,
                None => return Ok(()),
            },
        };
        let Ok(flags) = clone_flags(parent, child, event) else {
            // The parent was killed; its end is reported separately.
            self.early.push(child);
            return Ok(());
        };
        let vfork = flags & libc::CLONE_VFORK as u64 != 0;
        let maker = self.threads.get(&parent.tid()).cloned();
        let maker = maker.unwrap_or(Thread::untraced(parent.tid()));
        let beside = Maker {
            thread: parent,
            waits: vfork,
        };
        self.adopt(child, &maker, flags, Some(beside))
    }

    /// Adopts the children whose makers were killed before they reported them.
    pub(super) fn orphans(&mut self) {
        for child in std::mem::take(&mut self.early) {
            let Ok(block) = child.block() else {
                // It was killed, too.
                continue;
            };
            let tid = child.tid();
            let number = |key| ptrace::status(tid, key).and_then(|s| s.parse::<i32>().ok());
            // A thread was made by a thread of its own process, which will still report it. If it has a word, that is
            // in new memory, or is that of a thread that has ended.
            if let Some(process) = number("Tgid:").filter(|&process| process != tid)
                && self.threads.values().any(|thread| thread.pid == process)
            {
                self.early.push(child);
                continue;
            }
            let made = |thread: &&Thread| thread.block() == Some(block);
            if self.threads.values().any(|thread| made(&thread)) {
                self.early.push(child);
                continue;
            }
            let dead = self.ended.iter().rev().find(made).cloned();
            let maker = match dead {
                Some(maker) => maker,
                None => {
                    let parent = number("PPid:").unwrap_or(0);
                    if self.threads.values().any(|thread| thread.pid == parent) {
                        self.early.push(child);
                        continue;
                    }
                    Thread::untraced(tid)
                }
            };
            // A problem with one must leave neither the others stopped, nor threads that have nothing to do with it.
            if let Err(error) = self.adopt(child, &maker, 0, None)
                && !ptrace::is_gone(&error)
            {
                let _ = self.remark(tid, &format!("{error:#}"));
            }
        }
    }

    /// Takes over a new thread or process, which is stopped, and lets it run in any case. `beside`: its maker, if that
    /// is there and also stopped.
    pub(super) fn adopt(
        &mut self,
        child: Stopped,
        maker: &Thread,
        flags: u64,
        beside: Option<Maker>,
    ) -> Result<()> {
        let tid = child.tid();
        let done = self.follow(child, maker, flags, beside);
        if let Some(thread) = self.threads.get_mut(&tid) {
            let waits = beside.filter(|maker| maker.waits);
            thread.awaited = waits.map(|maker| maker.thread.tid());
        }
        if done.is_err() {
            self.threads
                .entry(tid)
                .or_insert_with(|| Thread::untraced(tid));
            let _ = child.cont(0);
        }
        done
    }

    pub(super) fn follow(
        &mut self,
        child: Stopped,
        maker: &Thread,
        flags: u64,
        beside: Option<Maker>,
    ) -> Result<()> {
        let tid = child.tid();
        let shares_memory = flags & libc::CLONE_VM as u64 != 0;
        let is_thread = flags & libc::CLONE_THREAD as u64 != 0;
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
                maker.contexts.clone().give_up(child)?;
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
            thread.contexts = maker.contexts.clone();
            thread.calls = maker.calls.inherited();
            self.turn(&space, maker.contexts.share());
        }
        self.go(child, 0)
    }
}

/// The flags with which a thread or process was made, taken from the registers of its maker.
fn clone_flags(parent: Stopped, child: Stopped, event: i32) -> Result<u64> {
    let regs = parent.regs()?;
    let vfork = (libc::CLONE_VM | libc::CLONE_VFORK) as u64;
    let argument = || regs.first_argument(parent);
    Ok(match regs.system_call() {
        Some(libc::SYS_clone) => argument()?,
        Some(libc::SYS_clone3) => argument()
            .and_then(|at| parent.memory()?.read_u64(TargetAddr(at)))
            .unwrap_or_else(|_| {
                // We may not see it (`PR_SET_DUMPABLE`, or a program that may be executed but not read).
                let process = ptrace::status(child.tid(), "Tgid:");
                if process.is_some_and(|process| process != child.to_string()) {
                    (libc::CLONE_VM | libc::CLONE_THREAD) as u64
                } else if event == libc::PTRACE_EVENT_VFORK {
                    vfork
                } else {
                    0
                }
            }),
        _ if event == libc::PTRACE_EVENT_VFORK => vfork,
        _ => 0,
    })
}
