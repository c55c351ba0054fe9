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

/// Code that makes a system call and then, unless somebody stops the thread there, has it go on as if it had not been
/// made. The stack pointer leads to what [`Regs::home`] has.
pub const CALL_AND_HOME: [u8; 51] = [
    0x0F, 0x05, // syscall
    0x31, 0xD2, // xor edx, edx
    0x48, 0x89, 0xE6, // mov rsi, rsp
    0xBF, 2, 0, 0, 0, // mov edi, SIG_SETMASK
    0x41, 0xBA, 8, 0, 0, 0, // mov r10d, 8
    0xB8, 14, 0, 0, 0, // mov eax, rt_sigprocmask
    0x0F, 0x05, // syscall
    0x58, // pop rax
    0x41, 0x5F, 0x41, 0x5E, 0x41, 0x5D, 0x41, 0x5C, // pop r15, r14, r13, r12
    0x5D, 0x5B, 0x41, 0x5B, 0x41, 0x5A, 0x41, 0x59, 0x41,
    0x58, // pop rbp, rbx, r11, r10, r9, r8
    0x58, 0x59, 0x5A, 0x5E, 0x5F, // pop rax, rcx, rdx, rsi, rdi
    0x48, 0xCF, // iretq
];

/// The oldest system call that waits for events of an epoll descriptor.
pub const EPOLL_WAIT: i64 = libc::SYS_epoll_wait;

/// Further events for which threads are to be stopped.
pub const OPTIONS: i32 = 0;

/// Has a stopped thread, which was interrupted in a system call that has returned EINTR for that, make it again. `regs`
/// are its own.
///
/// # Errors
/// If the thread is gone.
pub fn call_again(thread: Stopped, mut regs: Regs) -> Result<()> {
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
