//! Single steps, which the processor makes.

use anyhow::{Context, Result, bail};

use crate::arch::Regs;
use crate::memory::Memory;
use crate::request::request;
use crate::stopped::{Report, Stopped};
use crate::target::TargetAddr;

/// A single step: the processor does it.
#[derive(Debug, Clone, Copy)]
pub struct Step;

impl Step {
    /// The thread has stopped: brings it to where it would be if it had executed the instruction in its place. Returns
    /// whether that was not so.
    ///
    /// # Errors
    /// Never, here.
    pub fn end(self, _thread: Stopped) -> Result<bool> {
        Ok(false)
    }
}

impl Stopped {
    /// Has it execute one instruction; it stops by SIGTRAP. (`_scratch_page` and `_slot` are for others.)
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn step(self, _scratch_page: u64, _slot: u64) -> Result<Step> {
        request(libc::PTRACE_SINGLESTEP, self.tid(), 0, 0).map(|()| Step)
    }

    /// Has it take a signal, and stop at the first instruction of its handler, as [`Stopped::interrupt`] stops a
    /// thread.
    ///
    /// A step would do it, too. But the kernel takes the step's flag for the program's own if the next instruction may
    /// set it (`popf`, `iret`): the flag would then be in the handler's frame, and come back from there.
    ///
    /// # Errors
    /// If the thread is gone.
    pub fn enter_handler(self, signal: i32) -> Result<()> {
        // It stops on its way out of the kernel, when the handler's frame has been made.
        self.interrupt()?;
        request(libc::PTRACE_CONT, self.tid(), 0, signal as u64)
    }
}

/// Has a stopped thread execute one instruction while its signals wait.
///
/// # Errors
/// If the thread is gone, or the instruction faults.
pub fn step_alone(thread: Stopped) -> Result<()> {
    match step_with(thread, u64::MAX, |_| true)? {
        None => Ok(()),
        Some(status) => bail!("a step of thread {thread} ended with status {status:#x}"),
    }
}

/// Has a stopped thread execute instructions while its signals wait, until `is_done` says so of its registers. If one
/// of the instructions faults, returns the signal, which the thread does not get. The thread may then have no action
/// for SIGTRAP, or SIGSEGV, if it had one.
///
/// # Errors
/// If the thread is gone.
pub fn steps_alone(thread: Stopped, is_done: impl FnMut(&Regs) -> bool) -> Result<Option<i32>> {
    // If these were blocked, a fault would take the action for them away.
    const FAULTS: [i32; 3] = [libc::SIGBUS, libc::SIGFPE, libc::SIGILL];
    let faults = FAULTS.iter().fold(0, |all, signal| all | 1 << (signal - 1));
    match step_with(thread, !faults, is_done)? {
        Some(status) if libc::WIFSTOPPED(status) => Ok(Some(libc::WSTOPSIG(status))),
        Some(status) => bail!("a step of thread {thread} ended with status {status:#x}"),
        None => Ok(None),
    }
}

/// Whether a thread is at an instruction that pushes the flags.
fn pushes_flags(memory: &Memory, regs: &Regs) -> bool {
    const PUSHF: u8 = 0x9C;
    const SHORT: u8 = 0x66;
    const WIDE: std::ops::RangeInclusive<u8> = 0x40..=0x4F;
    let mut bytes = [0; 3];
    let is_read = memory.read(TargetAddr(regs.pc()), &mut bytes).is_ok();
    let is_prefix = |byte: &&u8| **byte == SHORT || WIDE.contains(*byte);
    is_read && bytes.iter().find(|byte| !is_prefix(byte)) == Some(&PUSHF)
}

/// A thread has pushed the flags in a step: among them is that of the step, which the kernel does not hide.
fn hide_step(memory: &Memory, regs: &Regs) -> Result<()> {
    const STEP: u8 = 1;
    let at = TargetAddr(regs.sp() + 1);
    let mut byte = [0];
    memory.read(at, &mut byte)?;
    memory.write(at, &[byte[0] & !STEP])
}

/// Clears the flag of steps in a thread.
fn stop_stepping(thread: Stopped) -> Result<()> {
    let mut regs = thread.regs()?;
    if regs.is_stepping() {
        regs.end_stepping();
        thread.set_regs(&regs)?;
    }
    Ok(())
}

/// Steps while the signals of this mask wait. Returns the status if one does not end as a step does.
fn step_with(
    thread: Stopped,
    waiting: u64,
    mut is_done: impl FnMut(&Regs) -> bool,
) -> Result<Option<i32>> {
    let mask = thread.signal_mask()?;
    thread.set_signal_mask(waiting)?;
    let mut was_asked = false;
    let mut end = None;
    let memory = thread.memory()?;
    let is_stepping = thread.regs()?.is_stepping();
    loop {
        let pushes = !is_stepping && pushes_flags(&memory, &thread.regs()?);
        thread.step(0, 0)?;
        let report = Report::of(thread.tid(), true)?.context("a step")?;
        if report.is_asked_for() {
            was_asked = true;
        } else if report.stopped().is_none() {
            return Ok(Some(report.status()));
        } else if report.signal() != libc::SIGTRAP {
            end = Some(report.status());
            if !is_stepping {
                // The kernel leaves the flag there if it takes it for the program's own.
                stop_stepping(thread)?;
            }
            break;
        } else {
            let regs = thread.regs()?;
            if pushes {
                hide_step(&memory, &regs)?;
            }
            if is_done(&regs) {
                break;
            }
        }
    }
    thread.set_signal_mask(mask)?;
    if was_asked {
        thread.interrupt()?;
    }
    Ok(end)
}
