//! The engine's other system calls: mappings and signals.

use hodo_sys::sys::call;

use super::arch::sys::number::{MADVISE, RT_SIGPROCMASK};
pub(super) use super::arch::sys::{Action, barrier, sigaction};
pub(super) use hodo_sys::sys::{
    Errno, process, register_sync_core, signal_thread, sync_core, thread, yield_now,
};

const MADV_DONTDUMP: usize = 16;
const MADV_WIPEONFORK: usize = 18;

pub(super) const SIGILL: i32 = 4;
pub(super) const SIGTRAP: i32 = 5;
pub(super) const SIGBUS: i32 = 7;
pub(super) const SIGFPE: i32 = 8;
pub(super) const SIGSEGV: i32 = 11;

/// Makes a page read as zeros in children of `fork`.
pub(super) fn wipe_on_fork(at: u64, size: usize) -> Result<(), Errno> {
    // SAFETY: it is our own mapping.
    unsafe { call(MADVISE, [at as usize, size, MADV_WIPEONFORK, 0, 0, 0]) }.map(|_| ())
}

/// Leaves a mapping out of core dumps.
pub(super) fn leave_out_of_dumps(at: u64, size: usize) {
    // SAFETY: it is our own mapping.
    let _ = unsafe { call(MADVISE, [at as usize, size, MADV_DONTDUMP, 0, 0, 0]) };
}

pub(super) const SA_SIGINFO: u64 = 4;
pub(super) const SA_ONSTACK: u64 = 0x0800_0000;
pub(super) const SA_NODEFER: u64 = 0x4000_0000;
pub(super) const SA_RESETHAND: u64 = 0x8000_0000;
/// Sets the thread's signal mask.
pub(super) fn set_mask(mask: u64) {
    const SIG_SETMASK: usize = 2;
    // SAFETY: the mask has the kernel's form.
    let _ = unsafe {
        call(
            RT_SIGPROCMASK,
            [SIG_SETMASK, &raw const mask as usize, 0, 8, 0, 0],
        )
    };
}
