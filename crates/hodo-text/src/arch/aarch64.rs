//! System calls of AArch64 Linux.

use core::arch::asm;

/// Numbers, from the kernel's `include/uapi/asm-generic/unistd.h`.
pub mod number {
    pub const OPENAT: usize = 56;
    pub const CLOSE: usize = 57;
    pub const READ: usize = 63;
    pub const PREAD: usize = 67;
    pub const PWRITE: usize = 68;
    pub const FUTEX: usize = 98;
    pub const SCHED_YIELD: usize = 124;
    pub const TGKILL: usize = 131;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const GETPID: usize = 172;
    pub const GETEUID: usize = 175;
    pub const GETTID: usize = 178;
    pub const GETSOCKOPT: usize = 209;
    pub const MEMBARRIER: usize = 283;
}

/// Makes a system call.
///
/// # Safety
/// As the system call.
pub unsafe fn call(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel keeps all registers but x0; the caller answers for what the call does.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] => result,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x5") args[5],
            options(nostack),
        );
    }
    result
}
