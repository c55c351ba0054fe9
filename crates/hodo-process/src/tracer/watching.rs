//! System calls that no probe sees: the thread is stopped at each, as a debugger does it, and what there is to see is put into
//! its records, as the code around instructions that call the kernel does it.
//!
//! These are the returns of signal handlers (unwinders know their code by its bytes, so it stays as it is), those by code of
//! libraries of which the dynamic linker has not told yet, and all those of an address space that has instructions that call the
//! kernel and could get no probe, as Go's have.

use anyhow::Result;
use hodo_trace::syscalls::fetch::Stopped;

use super::delivery::is_in;
use super::{SharedSpace, Thread, Tracer};
use crate::machine::frame;
use crate::remote::{self, Call, Memory};
use crate::session::counter;

/// System calls above the frame of a handler after which it is not waited for any more: it has left by `longjmp`.
const PATIENCE: u32 = 64;

/// What is recorded of a thread's system calls by looking at them.
#[derive(Debug, Clone, Default)]
pub(super) struct Calls {
    /// The one that it is in, if that is recorded: number and arguments.
    inside: Option<(u64, [u64; 6])>,
    /// The stack pointers at which signals came whose handlers have not returned.
    handlers: Vec<u64>,
    /// System calls made above the last of these.
    above: u32,
}

impl Calls {
    /// Those of the child of a thread: it is in the same handlers.
    pub(super) fn inherited(&self) -> Self {
        Self {
            inside: None,
            ..self.clone()
        }
    }
}

impl Thread {
    /// Does it stop at each of its system calls, so that these are seen?
    pub(super) fn is_seen(&self) -> bool {
        let watches = || {
            let space = self.space.as_ref()?.borrow();
            Some(space.watch.starting || space.watch.always)
        };
        self.task != 0
            && (!self.calls.handlers.is_empty()
                || self.calls.inside.is_some()
                || watches().unwrap_or(false))
    }
}

/// Does a signal without a handler end the process?
fn ends_process(signal: i32) -> bool {
    ![
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGURG,
        libc::SIGWINCH,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGSTOP,
    ]
    .contains(&signal)
}

impl Tracer<'_> {
    /// The dynamic linker has told of libraries.
    pub(super) fn watch_start(&self, tid: i32, space: &SharedSpace) {
        /// Of `r_state`: the linker is about to add to its list.
        const ADDING: u64 = 1;
        let mut space = space.borrow_mut();
        let Some(at) = space
            .watch
            .state
            .filter(|_| self.modules.probes.records_syscalls())
        else {
            return;
        };
        let state = Memory::open(tid).and_then(|memory| memory.read_u64(at));
        space.watch.starting = state.is_ok_and(|state| state & 0xFFFF_FFFF == ADDING);
        if !space.watch.starting {
            // From here on, no code of a library runs before the linker has announced it.
            space.watch.state = None;
        }
    }

    /// Has the threads stop that have to be seen from now on and run already.
    pub(super) fn begin_watching(&self) {
        for (&tid, thread) in &self.threads {
            if thread.is_seen() {
                // One that is gone tells so by itself.
                let _ = remote::interrupt(tid);
            }
        }
    }

    /// A signal is about to come to a thread: if it has a handler, its return is seen. If it ends the thread, so does the call that it
    /// is in, whose result is there already.
    pub(super) fn await_return(&mut self, tid: i32, signal: i32) -> Result<()> {
        let is_caught = is_in(tid, "SigCgt:", signal);
        let regs = remote::regs(tid)?;
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Ok(());
        };
        if is_caught {
            thread.calls.handlers.push(regs.sp());
            thread.calls.above = 0;
        } else if ends_process(signal)
            && !is_in(tid, "SigIgn:", signal)
            && thread.calls.inside.is_none()
            && regs.system_call().is_some()
            && let (Some(events), Some(number)) = (self.modules.probes.syscall_events(), thread.tcb)
        {
            let time = if self.recording.timed { counter() } else { 0 };
            let payload = [u64::MAX << 32, regs.result().cast_unsigned()];
            self.session
                .events
                .append(number, (events.ids.1, time), &payload);
        }
        Ok(())
    }

    /// A thread has stopped at a system call: records it, if no probe does.
    pub(super) fn see_call(&mut self, tid: i32, space: &SharedSpace, call: Call) -> Result<()> {
        let Some(events) = self.modules.probes.syscall_events() else {
            return Ok(());
        };
        let Some(thread) = self.threads.get_mut(&tid).filter(|thread| thread.task != 0) else {
            return Ok(());
        };
        let Some(number) = thread.tcb else {
            return Ok(());
        };
        let memory = Memory::open(tid)?;
        let read = |at: u64, bytes: &mut [u8]| memory.read_some(at, bytes);
        let stopped = |(number, args)| Stopped {
            table: &events.table,
            number,
            args,
            read: &read,
        };
        let time = match self.recording.timed {
            true => counter(),
            false => 0,
        };
        match call {
            Call::Entry {
                pc,
                sp,
                number: which,
                mut args,
            } => {
                let returns = which == libc::SYS_rt_sigreturn.cast_unsigned();
                if returns {
                    args[0] = sp.wrapping_add(frame::MASK - frame::RETURNED);
                    thread.calls.handlers.pop();
                } else if thread
                    .calls
                    .handlers
                    .last()
                    .is_some_and(|&frame| frame < sp)
                {
                    thread.calls.above += 1;
                    if thread.calls.above > PATIENCE {
                        thread.calls.handlers.pop();
                        thread.calls.above = 0;
                    }
                }
                if space.borrow().holds(pc) {
                    return Ok(());
                }
                if let Some(payload) = stopped((which, args)).enter() {
                    let event = (events.ids.0, time);
                    self.session.events.append(number, event, &payload);
                    thread.calls.inside = Some((which, args));
                }
            }
            Call::Exit(result) => {
                let inside = thread.calls.inside.take();
                if let Some(payload) = inside.and_then(|call| stopped(call).exit(result)) {
                    let event = (events.ids.1, time);
                    self.session.events.append(number, event, &payload);
                }
            }
            Call::Other => {}
        }
        Ok(())
    }
}
