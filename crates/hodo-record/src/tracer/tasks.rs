//! The tracer's threads as tasks of the trace: their control blocks, and how they begin and end.

use hodo_inject::install;
use std::rc::Rc;

use anyhow::Result;
use hodo_abi::Span;
use hodo_trace::format::{TCBS, counters, tcb};
use serde_json::json;

use super::shared::{Maker, Origin};
use super::{Calls, REMEMBERED, SharedSpace, Thread, Tracer};
use crate::arch;
use crate::events::TcbInit;
use crate::session::exit_json;
use hodo_follow::{Exit, Restarts};
use hodo_inject::context::Contexts;
use hodo_ptrace as ptrace;
use hodo_ptrace::Stopped;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::arch::counter;

/// The control block's fields for its list of return probes.
const CHAIN: std::ops::Range<u64> = tcb::CHAIN_TOP..tcb::CHAIN_LO + 8;

impl Tracer<'_> {
    pub(super) fn release(&mut self, thread: &Thread, exit: Option<Exit>) -> Result<()> {
        if let Some(number) = thread.tcb {
            self.free_tcbs.push_back(number);
            self.threads.remember(thread);
            if thread.task == 0 {
                return Ok(());
            }
            self.lost += self.session.events.lost(number);
            self.unshadowed += self.session.events.unshadowed(number);
            self.bad_frames(thread, number)?;
            self.session.log(&json!({"task_end": {
                "id": thread.task, "counter": counter(), "exit": exit.map(exit_json)}}))?;
        }
        Ok(())
    }

    /// Logs the name of a thread if it has changed: threads often name themselves after they have begun.
    pub(super) fn tell_name(&mut self, tid: i32) -> Result<()> {
        let Some(thread) = self.threads.get_mut(&tid).filter(|thread| thread.task != 0) else {
            return Ok(());
        };
        let Some(name) = ptrace::status(tid, "Name:").filter(|name| *name != thread.name) else {
            return Ok(());
        };
        let line = json!({"task_name": {"id": thread.task, "comm": name}});
        thread.name = name;
        self.session.log(&line)
    }

    /// Logs a signal that is about to be delivered to a thread.
    pub(super) fn tell_signal(&mut self, stopped: Stopped) -> Result<()> {
        let tid = stopped.tid();
        if self.threads.get(&tid).is_none_or(|thread| thread.task == 0) {
            return Ok(());
        }
        // A stop without information is not a signal, but a stop of the whole process.
        let Ok(info) = stopped.siginfo() else {
            return Ok(());
        };
        let interrupted = self.await_return(stopped, info.si_signo)?;
        let Some(thread) = self.threads.get(&tid) else {
            return Ok(());
        };
        // SAFETY: the kernel has filled the whole structure, and all bit patterns of numbers are valid.
        let (sender, addr) = unsafe {
            let sender = [
                i64::from(info.si_pid()),
                i64::from(info.si_uid()),
                i64::from(info.si_status()),
                info.si_utime(),
                info.si_stime(),
            ];
            (sender, info.si_addr().addr())
        };
        self.session.log(&json!({"signal": {
            "id": thread.task, "counter": counter(), "signal": info.si_signo, "code": info.si_code,
            "sender": sender, "addr": addr, "call": interrupted}}))
    }

    /// Reports exits that did not find the frame of their entry (`--check-frames`).
    pub(super) fn bad_frames(&mut self, thread: &Thread, number: u64) -> Result<()> {
        let count = self
            .session
            .events
            .tcb_words(number, tcb::BAD_FRAMES..tcb::BAD_FRAMES + 8)[0];
        if count == 0 {
            return Ok(());
        }
        let first = self
            .session
            .events
            .tcb_words(number, tcb::BAD_ID..tcb::BAD_EXIT + 8);
        let name = self.modules.name(first[0] as u32).unwrap_or("?").to_owned();
        let entry = match first[1] {
            0 => "an unknown frame".to_owned(),
            frame => format!("frame {frame:#x}"),
        };
        let text = format!(
            "the frame test failed {count} times; first in {name}: entered with {entry}, left with frame {:#x}",
            first[2]
        );
        self.remark(thread.pid, &text)?;
        if self.options.verbose == 0 {
            warn_user!("hodo: {}: {text}", thread.pid);
        }
        Ok(())
    }

    /// TCB numbers below this one can be used.
    pub(super) fn most_tcbs(&self) -> u64 {
        match self.session.counters {
            // A thread with a higher number would count for another probe.
            Some(_) => counters::THREADS,
            None => TCBS,
        }
    }

    pub(super) fn alloc_tcb(&mut self) -> Option<u64> {
        let number = self.next_tcb;
        if self.free_tcbs.len() > REMEMBERED
            || number >= self.most_tcbs()
            || self.session.events.reserve_tcb(number).is_err()
        {
            return self.free_tcbs.pop_front();
        }
        self.next_tcb += 1;
        Some(number)
    }

    /// Gives a stopped thread a control block, and logs its task.
    pub(super) fn begin_task(
        &mut self,
        stopped: Stopped,
        pid: i32,
        kind: &str,
        parent: u32,
        space: &SharedSpace,
        origin: Origin,
    ) -> Result<()> {
        let tid = stopped.tid();
        if self.clearing {
            return self.join_left(stopped, pid, space, origin.maker);
        }
        let Origin {
            maker,
            tcb: inherited,
            begins,
        } = origin;
        let mut init = self.tcb_init(tid, space, inherited);
        init.pid = pid.cast_unsigned();
        if begins && self.modules.probes.trace_stacks() {
            init.stack_top = stopped.regs()?.sp();
        }
        let Some(number) = self.alloc_tcb() else {
            return self.crowded(stopped, pid, space, init, maker);
        };
        init.task = self.next_task;
        self.next_task += 1;
        self.session.events.init_tcb(number, &init);
        if let Some(from) = inherited.filter(|_| kind == "fork") {
            // The frames that are open in the parent are also open in the child.
            let events = &self.session.events;
            for words in [tcb::INSIDE..tcb::BAD_ID, tcb::SYSCALLS..tcb::SIZE] {
                let inside = events.tcb_words(from, words.clone());
                events.put_tcb_words(number, words.start, &inside);
            }
        }
        if self.session.events.tells_time() {
            self.session.events.tell_time_to(self.next_tcb);
        }
        let base = space.borrow().trace().start;
        let (inherited, used) = match inherited.filter(|_| kind == "fork") {
            Some(from) => {
                let words = self.session.events.tcb_words(from, CHAIN);
                let used = words[0].wrapping_sub(words[1]);
                let used = Some(used).filter(|used| *used <= counters::CHAIN_SIZE);
                (used.map(|used| (from, used)), used.unwrap_or(0))
            }
            None => (None, 0),
        };
        if let Some(at) = self.session.begin_chain(number, inherited)? {
            let at = base - counters::SIZE + at;
            let events = &self.session.events;
            events.put_tcb_words(number, tcb::CHAIN_TOP, &[at + used, at]);
        }
        self.lead(stopped, (number, base + number * tcb::SIZE), space, maker)?;
        let exe = std::fs::read_link(format!("/proc/{tid}/exe")).unwrap_or_default();
        let name = ptrace::status(tid, "Name:").unwrap_or_default();
        self.session.log(&json!({"task": {
            "id": init.task, "exe": exe.to_string_lossy(), "tid": tid, "pid": pid,
            "ppid": ptrace::status(tid, "PPid:").and_then(|s| s.parse::<i32>().ok()),
            "comm": name, "kind": kind, "parent": parent, "counter": counter(),
        }}))?;
        // No chunk belongs to a task that is not in the log.
        if kind == "thread" && !self.full {
            self.session.events.give_rest(number);
        }
        self.threads.insert(
            tid,
            Thread {
                pid,
                task: init.task,
                tcb: Some(number),
                name,
                space: Some(Rc::clone(space)),
                contexts: Contexts::default(),
                private: None,
                awaited: None,
                restarts: Restarts::default(),
                calls: Calls::default(),
            },
        );
        if self.session.is_log_full() && !self.full {
            // What is left of the disk is for the end.
            self.stop_recording(tid)?;
        }
        Ok(())
    }

    /// The initial contents of a thread's control block.
    pub(super) fn tcb_init(
        &self,
        tid: i32,
        space: &SharedSpace,
        inherited: Option<u64>,
    ) -> TcbInit {
        let space = space.borrow();
        let known = inherited.map_or(Span::EMPTY, |number| {
            self.session.events.shadow_range(number)
        });
        TcbInit {
            task: 0,
            tid: tid.cast_unsigned(),
            pid: tid.cast_unsigned(),
            comm: ptrace::comm(tid),
            trace: space.trace(),
            islands: space.islands(),
            shadow: if known.is_empty() {
                space.shadows()[0]
            } else {
                known
            },
            regions: space.shadows(),
            code: match self.modules.probes.trace_stacks() {
                true => space.code_ranges(),
                false => Default::default(),
            },
            stack_top: 0,
            epoch: (counter() >> 32) as u32,
            silent: self.full,
            calls: match ptrace::is_confined(tid) {
                true => tcb::NO_CALLS,
                false => arch::calls(tid),
            },
            fixed: false,
        }
    }

    /// There are more threads than control blocks: this one gets one in its own memory, and its calls are not recorded.
    pub(super) fn crowded(
        &mut self,
        stopped: Stopped,
        pid: i32,
        space: &SharedSpace,
        mut init: TcbInit,
        maker: Option<Maker>,
    ) -> Result<()> {
        let tid = stopped.tid();
        init.silent = true;
        let at = self.private_block(stopped, space, &init)?;
        self.lead(stopped, (0, at), space, maker)?;
        self.crowded += 1;
        let thread = Thread {
            space: Some(Rc::clone(space)),
            private: Some(at),
            ..Thread::untraced(pid)
        };
        self.threads.insert(tid, thread);
        Ok(())
    }

    /// Makes a control block in the memory of a stopped thread. Returns its address.
    pub(super) fn private_block(
        &self,
        stopped: Stopped,
        space: &SharedSpace,
        init: &TcbInit,
    ) -> Result<u64> {
        let below = match self.session.counters {
            Some(_) => counters::SIZE,
            None => 0,
        };
        let at = install::private_page(stopped, TargetAddr(space.borrow().syscall_place()), below)?;
        space
            .borrow_mut()
            .add_private(Span::at(at - below, below + 4096));
        let bytes: Vec<u8> = init.words().iter().flat_map(|w| w.to_le_bytes()).collect();
        let memory = stopped.memory()?;
        space.borrow_mut().note(&memory)?;
        memory.write(TargetAddr(at), &bytes)?;
        Ok(at)
    }
}
