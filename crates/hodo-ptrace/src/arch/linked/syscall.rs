//! System calls that a stop interrupts. When the kernel lets such a thread stop, it has already set the thread back to
//! the instruction, and knows whether that stays so if a handler runs. It forgets this at the next system call.

use anyhow::Result;
/// What enters the kernel.
pub use hodo_isa::native::asm::SYSTEM_CALL;

use super::handler::word;
use super::regs::Regs;
use crate::arch::frame;
use crate::memory::Memory;
use crate::stopped::Stopped;
use crate::target::TargetAddr;

/// How far from where a thread was stopped the kernel has it go on in a handler's frame, if that has broken off its
/// system call.
pub const BROKEN_OFF: i64 = SYSTEM_CALL.len() as i64;

/// The oldest system call that waits for events of an epoll descriptor.
pub const EPOLL_WAIT: i64 = libc::SYS_epoll_pwait;

/// Further events for which threads are to be stopped.
pub const OPTIONS: i32 = libc::PTRACE_O_TRACEVFORKDONE;

/// What the kernel returns to itself for calls that are to be made again: unless a handler comes that was not set with
/// `SA_RESTART`; unless any handler comes; by another call, for the time that is left.
const ERESTARTSYS: i64 = 512;

const ERESTARTNOHAND: i64 = 514;

const ERESTART_RESTARTBLOCK: i64 = 516;

/// What the kernel returns to itself for calls that wait and are broken off.
fn restarts(number: i64) -> Option<i64> {
    Some(match number {
        libc::SYS_ppoll | libc::SYS_pselect6 | libc::SYS_rt_sigsuspend => ERESTARTNOHAND,
        // The kernel has put it in the place of one for which it remembers the time.
        libc::SYS_restart_syscall => ERESTART_RESTARTBLOCK,
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_connect
        | libc::SYS_futex
        | libc::SYS_wait4
        | libc::SYS_waitid
        | libc::SYS_flock
        | libc::SYS_mq_timedsend
        | libc::SYS_mq_timedreceive => ERESTARTSYS,
        _ => return None,
    })
}

/// Calls that return EINTR for nothing but a handler.
const FOR_HANDLERS: [i64; 9] = [
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_rt_sigsuspend,
    libc::SYS_restart_syscall,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_futex,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Returns whether a thread with these registers is at an instruction that makes a system call.
fn is_at_call(thread: Stopped, regs: &Regs) -> bool {
    let mut bytes = SYSTEM_CALL;
    // What cannot be read is no call. A process may deny hodo its memory file (`PR_SET_DUMPABLE`).
    let read = thread.load(TargetAddr(regs.pc()), &mut bytes);
    read == bytes.len() && bytes == SYSTEM_CALL
}

/// Returns the result of the system call in which a signal reaches a thread with these registers. The kernel has moved
/// the thread back if the call is to be made again, and the register of the result has the first argument. Then this is
/// what the kernel has most probably returned to itself.
///
/// # Errors
/// If the thread is gone.
pub fn interrupted_result(thread: Stopped, regs: &Regs) -> Result<i64> {
    Ok(match is_at_call(thread, regs) {
        true => -regs.system_call().and_then(restarts).unwrap_or(ERESTARTSYS),
        false => regs.result(),
    })
}

/// Registers with which a thread that was stopped in a system call, and has made others, comes out of the kernel as if
/// it were that call. `saved` are its own. Another number: what the last one of the others is to have as its first
/// argument.
///
/// A thread that was only about to make the call is one that it is broken off for at once.
///
/// # Errors
/// If the thread is gone.
pub fn broken_off(thread: Stopped, saved: &Regs) -> Result<(Regs, Option<u64>)> {
    let code = saved.system_call().and_then(restarts);
    let begins = code.is_some() && is_at_call(thread, saved);
    let Some(code) = code.filter(|_| begins) else {
        return Ok((*saved, None));
    };
    let mut regs = *saved;
    regs.set_pc(saved.pc() + SYSTEM_CALL.len() as u64);
    regs.set_result(-code);
    Ok((regs, Some(saved.result().cast_unsigned())))
}

/// Has a stopped thread, which was interrupted in a system call that has returned EINTR for that, make it again. `regs`
/// are its own, `argument` is the call's first, whose register has the result. Where it is not known, the thread gets
/// EINTR.
///
/// # Errors
/// If the thread is gone.
pub fn call_again(thread: Stopped, mut regs: Regs, argument: Option<u64>) -> Result<()> {
    if regs
        .system_call()
        .is_some_and(|call| FOR_HANDLERS.contains(&call))
    {
        return Ok(());
    }
    let mut code = SYSTEM_CALL;
    let at = regs.pc().wrapping_sub(code.len() as u64);
    let memory = thread.memory()?;
    memory.read(TargetAddr(at), &mut code)?;
    if code == SYSTEM_CALL
        && !is_behind_handler(&memory, &regs)
        && let Some(argument) = argument
    {
        regs.set_pc(at);
        regs.set_argument(0, argument);
        thread.set_regs(&regs)?;
    }
    Ok(())
}

/// Has a handler come back to where the thread is? Nothing but its frame tells: the kernel does not know any more which
/// call the thread was in, nor its argument. What is left of an earlier handler looks the same; a program that has such
/// handlers knows EINTR.
fn is_behind_handler(memory: &Memory, regs: &Regs) -> bool {
    // The frame, with vector registers, and what handlers leave free.
    for size in [32 << 10, 8 << 10, 2 << 10] {
        let mut below = vec![0; size];
        if memory
            .read(TargetAddr(regs.sp().wrapping_sub(size as u64)), &mut below)
            .is_err()
        {
            continue;
        }
        let is = |at: usize, offset: u64, value| word(&below, at + offset as usize) == Some(value);
        return (0..size).step_by(16).any(|at| {
            is(at, frame::SP, regs.sp())
                && is(at, frame::PC, regs.pc())
                && is(at, frame::RESULT, regs.result().cast_unsigned())
        });
    }
    false
}
