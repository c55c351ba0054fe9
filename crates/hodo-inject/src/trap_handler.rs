//! The handler of SIGTRAP that leads threads past breakpoints if hodo is killed.
//!
//! While hodo traces a thread, the kernel reports each breakpoint to hodo first, and no handler runs. Without a tracer,
//! SIGTRAP would end the program. The handler is set only in programs that contain breakpoints, and only while the
//! program wants the default action.

use anyhow::Result;
use hodo_ptrace::pass_fd::below;
use hodo_ptrace::{Memory, Stopped, Syscalls, TargetAddr, is_caught, is_ignored, maps};

use crate::arch::RESTORER;
use crate::space::Space;

/// Lets a stopped thread's process come past the breakpoints that are about to be written, and tells the handler where
/// they lead. The blocks that contain this are already written.
///
/// # Errors
/// If the process's memory cannot be written, or the thread is gone.
pub fn prepare(thread: Stopped, space: &mut Space) -> Result<()> {
    if !space.trap_blocks().has_news() {
        return Ok(());
    }
    let calls = Syscalls::begin(thread, TargetAddr(space.syscall_place()))?;
    let set = prepare_by(&calls, space);
    calls.end()?;
    set
}

/// Prepares it in a thread that was stopped by [`Stopped::interrupt`]. Returns whether its process was found stopped as
/// a whole, if the thread had to make system calls.
///
/// # Errors
/// As for [`prepare`].
pub fn prepare_in_stop(thread: Stopped, space: &mut Space) -> Result<Option<bool>> {
    if !space.trap_blocks().has_news() {
        return Ok(None);
    }
    let maps = maps::read(thread.tid())?;
    let calls = Syscalls::begin_anywhere(thread, &thread.memory()?, &maps)?;
    let set = prepare_by(&calls, space);
    let group = calls.end_in_stop()?;
    set?;
    Ok(Some(group))
}

fn prepare_by(calls: &Syscalls, space: &mut Space) -> Result<()> {
    let Some(handler) = space.trap_handler() else {
        return Ok(());
    };
    let tid = calls.thread().tid();
    let memory = calls.thread().memory()?;
    let block = space.trap_blocks_mut().tell();
    memory.write(TargetAddr(handler.head), &block.to_le_bytes())?;
    // An action that the program has chosen itself stays.
    if is_caught(tid, libc::SIGTRAP) || is_ignored(tid, libc::SIGTRAP) {
        return Ok(());
    }
    if let Some(mut action) = Action::of(calls, &memory)? {
        action.flags = (action.flags | OUR_FLAGS) & !RESETS_HANDLER;
        if let Some(restorer) = RESTORER
            && action.flags & restorer.flag == 0
        {
            action.flags |= restorer.flag;
            action.restorer = handler.restorer;
        }
        action.write(&memory, handler.action)?;
        calls.sigaction(libc::SIGTRAP, TargetAddr(handler.action), TargetAddr(0))?;
    }
    Ok(())
}

/// If our handler is the action of a process, sets the default action.
///
/// # Errors
/// If the process's memory cannot be accessed, or the thread is gone.
pub(crate) fn take_back(calls: &Syscalls, memory: &Memory, space: &Space) -> Result<()> {
    let caught = is_caught(calls.thread().tid(), libc::SIGTRAP);
    let Some(handler) = space.trap_handler().filter(|_| caught) else {
        return Ok(());
    };
    if let Some(mut action) = Action::of(calls, memory)?
        && action.handler == handler.at
    {
        action.flags &= !OUR_FLAGS;
        if let Some(restorer) = RESTORER
            && action.restorer == handler.restorer
        {
            action.flags &= !restorer.flag;
            action.restorer = 0;
        }
        action.write(memory, handler.default)?;
        calls.sigaction(libc::SIGTRAP, TargetAddr(handler.default), TargetAddr(0))?;
    }
    Ok(())
}

/// The flags that our handler needs, and one that it must not have. Without a handler they have no effect, but programs
/// can query them.
const OUR_FLAGS: u64 = (libc::SA_SIGINFO | libc::SA_ONSTACK) as u64;
const RESETS_HANDLER: u64 = libc::SA_RESETHAND as u32 as u64;

/// A process's action for SIGTRAP: the beginning of the kernel's `struct sigaction`.
struct Action {
    handler: u64,
    flags: u64,
    /// Only if [`RESTORER`] is set.
    restorer: u64,
}

impl Action {
    /// Queries the kernel. `None`: it does not answer.
    fn of(calls: &Syscalls, memory: &Memory) -> Result<Option<Self>> {
        let scratch = below(calls.thread().regs()?.sp());
        let mut saved = [0; 32];
        memory.read(scratch, &mut saved)?;
        let asked = calls.sigaction(libc::SIGTRAP, TargetAddr(0), scratch)?;
        let word = |number: u64| memory.read_u64(TargetAddr(scratch.0 + 8 * number));
        let this = Self {
            handler: word(0)?,
            flags: word(1)?,
            restorer: word(2)?,
        };
        memory.write(scratch, &saved)?;
        Ok(asked.then_some(this))
    }

    /// Writes everything but the handler to such a struct in the process's memory.
    fn write(&self, memory: &Memory, at: u64) -> Result<()> {
        memory.write(TargetAddr(at + 8), &self.flags.to_le_bytes())?;
        match RESTORER {
            Some(_) => memory.write(TargetAddr(at + 16), &self.restorer.to_le_bytes()),
            None => Ok(()),
        }
    }
}
