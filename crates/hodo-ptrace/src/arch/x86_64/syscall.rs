//! How system calls are made, interrupted and restarted.

use anyhow::Result;

use super::regs::Regs;
use crate::stopped::Stopped;
use crate::target::TargetAddr;

/// What enters the kernel (`syscall`).
pub use hodo_isa::x86_64::asm::SYSTEM_CALL;

/// How far from where a thread was stopped the kernel has it go on in a handler's frame, if that has broken in on a
/// system call that is made again.
pub const BROKEN_OFF: i64 = -2;

/// The oldest system call that waits for events of an epoll descriptor.
pub const EPOLL_WAIT: i64 = libc::SYS_epoll_wait;

/// Further events for which threads are to be stopped.
pub const OPTIONS: i32 = 0;

/// Has a stopped thread, which was interrupted in a system call that has returned EINTR for that, make it again. `regs`
/// are its own, which have all arguments.
///
/// # Errors
/// If the thread is gone.
pub fn call_again(thread: Stopped, mut regs: Regs, _argument: Option<u64>) -> Result<()> {
    let mut code = SYSTEM_CALL;
    let at = regs.0.rip.wrapping_sub(code.len() as u64);
    thread.memory()?.read(TargetAddr(at), &mut code)?;
    if code == SYSTEM_CALL {
        regs.0.rip = at;
        regs.0.rax = regs.0.orig_rax;
        regs.0.orig_rax = u64::MAX;
        thread.set_regs(&regs)?;
    }
    Ok(())
}

/// Registers with which a thread that was stopped in a system call, and has made others, comes out of the kernel as if
/// it were that call. `saved` are its own. Another number: what the last one of the others is to have as its first
/// argument.
///
/// # Errors
/// Never, here.
pub fn broken_off(_thread: Stopped, saved: &Regs) -> Result<(Regs, Option<u64>)> {
    Ok((*saved, None))
}

/// Returns the result of the system call in which a signal reaches a thread with these registers.
///
/// # Errors
/// Never, here.
pub fn interrupted_result(_thread: Stopped, regs: &Regs) -> Result<i64> {
    Ok(regs.result())
}
