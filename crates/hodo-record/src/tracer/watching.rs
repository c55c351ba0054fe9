//! System calls without probes. The thread is stopped at each one, as by a debugger, and its records get what the code
//! around probed system call instructions would write.
//!
//! These are the returns of signal handlers (unwinders recognize their code by its bytes, so it must not change),
//! system calls of libraries that the dynamic linker has not announced yet, and all calls of an address space that
//! contains system call instructions for which there can be no probe, such as Go's.

use anyhow::Result;
use hodo_trace::format::tcb;
use hodo_trace::syscalls::fetch;
use hodo_trace::syscalls::{EARLIER, NUMBERS};

use super::delivery::is_in;
use super::{SharedSpace, Thread, Tracer};
use hodo_ptrace::Call;
use hodo_ptrace::Stopped;
use hodo_ptrace::TargetAddr;
use hodo_ptrace::arch::counter;
use hodo_ptrace::arch::{frame, interrupted_result};
use hodo_ptrace::stops;

/// After this many system calls above a handler's frame, we assume that the handler was left by `longjmp`.
const PATIENCE: u32 = 64;

/// The end of a signal handler: its result is that of the call that the signal has interrupted.
const RETURN: u64 = libc::SYS_rt_sigreturn.cast_unsigned();

/// The state of a thread's system calls that are recorded by stopping at them.
#[derive(Debug, Clone, Default)]
pub(super) struct Calls {
    /// The recorded call that it is in: number and arguments.
    inside: Option<(u64, [u64; 6])>,
    /// If that call was broken off by a stop and is restarted: what it has returned, and when.
    broken: Option<(u64, u64)>,
    /// The stack pointers at which signals were delivered whose handlers have not returned.
    handlers: Vec<u64>,
    /// The number of system calls that were made above the last of these.
    above: u32,
}

impl Calls {
    /// The state of a thread's child: it runs in the same handlers.
    pub(super) fn inherited(&self) -> Self {
        Self {
            inside: None,
            broken: None,
            ..self.clone()
        }
    }

    /// A call is made with this stack pointer. If that is above the last handler's frame, the handler may have been
    /// left by a jump.
    fn leave_handlers(&mut self, sp: u64) {
        if self.handlers.last().is_some_and(|&frame| frame < sp) {
            self.above += 1;
            if self.above > PATIENCE {
                self.handlers.pop();
                self.above = 0;
            }
        }
    }
}

impl Thread {
    /// Whether the thread stops at each of its system calls, so that they are seen.
    pub(super) fn is_seen(&self) -> bool {
        let watches = || {
            let space = self.space.as_ref()?.borrow();
            Some(space.watch().starting || space.watch().always)
        };
        self.task != 0
            && (!self.calls.handlers.is_empty()
                || self.calls.inside.is_some()
                || watches().unwrap_or(false))
    }
}

/// Whether a signal without a handler ends the process.
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

/// Whether this result means that only a stop has ended a call. The call is then restarted.
fn is_broken_off(tid: i32, result: u64) -> bool {
    let again = matches!(result.cast_signed(), -514..=-512 | -516);
    let again = again || result.cast_signed() == -i64::from(libc::EINTR);
    again && !hodo_ptrace::has_signal(tid)
}

impl Tracer<'_> {
    /// A stopped thread was in a system call when hodo attached: as far as we know, the call begins now. `probed`: a
    /// probe sees its end.
    pub(super) fn was_in_call(&mut self, stopped: Stopped, probed: bool) -> Result<()> {
        let tid = stopped.tid();
        let (Some(events), Some(thread)) = (
            self.modules.probes.syscall_events(),
            self.threads.get_mut(&tid),
        ) else {
            return Ok(());
        };
        let Some(number) = thread.tcb.filter(|_| probed || thread.is_seen()) else {
            return Ok(());
        };
        let regs = stopped.regs()?;
        let memory = stopped.memory()?;
        let (which, args) = regs.call();
        let call = fetch::Stopped {
            table: &events.table,
            limits: events.limits,
            number: which,
            args,
            read: &|at, bytes| memory.read_some(TargetAddr(at), bytes),
        };
        let time = if self.recording.timed { counter() } else { 0 };
        let Some(mut payload) = call.enter() else {
            return Ok(());
        };
        payload[0] |= EARLIER;
        let log = &self.session.events;
        log.append(number, (events.ids.0, time), &payload);
        if probed {
            let slot = tcb::SYSCALLS + (regs.sp() & 0x30);
            log.put_tcb_words(number, slot, &[regs.sp(), which.min(NUMBERS)]);
        } else {
            thread.calls.inside = Some((which, args));
            thread.calls.broken = Some((regs.result().cast_unsigned(), time));
        }
        Ok(())
    }

    /// The dynamic linker has announced libraries.
    pub(super) fn watch_start(&self, stopped: Stopped, space: &SharedSpace) {
        /// A value of `r_state`: the linker is about to add to its list.
        const ADDING: u64 = 1;
        let mut space = space.borrow_mut();
        let Some(at) = space
            .watch()
            .state
            .filter(|_| self.modules.probes.records_syscalls())
        else {
            return;
        };
        let memory = stopped.memory();
        let state = memory.and_then(|memory| memory.read_u64(TargetAddr(at)));
        space.linker_is_adding(state.is_ok_and(|state| state & 0xFFFF_FFFF == ADDING));
    }

    /// Makes running threads stop that must be watched from now on.
    pub(super) fn begin_watching(&self) {
        for (&tid, thread) in self.threads.iter() {
            if thread.is_seen() {
                // A thread that is gone is reported separately.
                let _ = stops::interrupt(tid);
            }
        }
    }

    /// A signal is about to be delivered to a thread. If it has a handler, the return from that will be seen. If the
    /// signal ends the thread, it also ends the current call, whose result is known already. Returns the number and the
    /// result of a call that the signal's handler interrupts: it may be left by a jump, and then the call never ends.
    pub(super) fn await_return(
        &mut self,
        stopped: Stopped,
        signal: i32,
    ) -> Result<Option<(u64, i64)>> {
        let tid = stopped.tid();
        let is_caught = is_in(tid, "SigCgt:", signal);
        let regs = stopped.regs()?;
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Ok(None);
        };
        if is_caught {
            thread.calls.handlers.push(regs.sp());
            thread.calls.above = 0;
            if regs.system_call().is_none() {
                return Ok(None);
            }
            let result = interrupted_result(stopped, &regs)?;
            return Ok(Some((regs.call().0, result)));
        }
        if ends_process(signal)
            && !is_in(tid, "SigIgn:", signal)
            && thread.calls.inside.is_none()
            && regs.system_call().is_some()
            && let (Some(events), Some(number)) = (self.modules.probes.syscall_events(), thread.tcb)
        {
            let time = if self.recording.timed { counter() } else { 0 };
            let result = interrupted_result(stopped, &regs)?;
            let payload = [u64::MAX << 32, result.cast_unsigned()];
            self.session
                .events
                .append(number, (events.ids.1, time), &payload);
        }
        Ok(None)
    }

    /// A thread has stopped at a system call: records it, unless a probe does.
    pub(super) fn see_call(
        &mut self,
        stopped: Stopped,
        space: &SharedSpace,
        call: Call,
    ) -> Result<()> {
        let tid = stopped.tid();
        let Some(events) = self.modules.probes.syscall_events() else {
            return Ok(());
        };
        let Some(thread) = self.threads.get_mut(&tid).filter(|thread| thread.task != 0) else {
            return Ok(());
        };
        let Some(number) = thread.tcb else {
            return Ok(());
        };
        let memory = stopped.memory()?;
        let read = |at: u64, bytes: &mut [u8]| memory.read_some(TargetAddr(at), bytes);
        let stopped = |(number, args)| fetch::Stopped {
            table: &events.table,
            limits: events.limits,
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
                if which == RETURN {
                    args[0] = sp.wrapping_add(frame::MASK - frame::RETURNED);
                    thread.calls.handlers.pop();
                } else {
                    thread.calls.leave_handlers(sp);
                }
                if space.borrow().holds(pc) {
                    return Ok(());
                }
                if let Some((result, time)) = thread.calls.broken.take() {
                    let again = libc::SYS_restart_syscall.cast_unsigned();
                    let inside = thread.calls.inside;
                    if inside.is_some_and(|(inside, _)| [inside, again].contains(&which)) {
                        // It continues only now.
                        return Ok(());
                    }
                    let ended = inside.and_then(|call| stopped(call).exit(result));
                    if let Some(payload) = ended {
                        let event = (events.ids.1, time);
                        self.session.events.append(number, event, &payload);
                    }
                    thread.calls.inside = None;
                }
                if let Some(payload) = stopped((which, args)).enter() {
                    let event = (events.ids.0, time);
                    self.session.events.append(number, event, &payload);
                    thread.calls.inside = Some((which, args));
                }
            }
            Call::Exit(result)
                if (thread.calls.inside).is_some_and(|(inside, _)| inside != RETURN)
                    && is_broken_off(tid, result) =>
            {
                thread.calls.broken = Some((result, time));
            }
            Call::Exit(result) => {
                thread.calls.broken = None;
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
