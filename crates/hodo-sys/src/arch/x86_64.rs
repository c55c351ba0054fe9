//! System calls of x86-64 (System V ABI, AMD64 supplement, section A.2.1).

use core::arch::asm;

/// Numbers, from the kernel's `arch/x86/entry/syscalls/syscall_64.tbl`.
pub mod number {
    pub const READ: usize = 0;
    pub const CLOSE: usize = 3;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const IOCTL: usize = 16;
    pub const PREAD: usize = 17;
    pub const PWRITE: usize = 18;
    pub const SCHED_YIELD: usize = 24;
    pub const MADVISE: usize = 28;
    pub const NANOSLEEP: usize = 35;
    pub const GETPID: usize = 39;
    pub const GETSOCKOPT: usize = 55;
    pub const GETEUID: usize = 107;
    pub const GETTID: usize = 186;
    pub const FUTEX: usize = 202;
    pub const TGKILL: usize = 234;
    pub const OPENAT: usize = 257;
    pub const PPOLL: usize = 271;
    pub const MEMBARRIER: usize = 324;
}

/// Changes of code are written in aligned units of this many bytes: here they may be written in any order.
pub const UNIT: u64 = 1;

/// Two functions: one returns 1, the other 2. `mov eax, 1; ret`
pub const RETURNS: [&[u8]; 2] = [&[0xB8, 1, 0, 0, 0, 0xC3], &[0xB8, 2, 0, 0, 0, 0xC3]];

/// Makes a system call.
///
/// # Safety
/// As the system call.
pub unsafe fn call(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel keeps all registers but these; the caller answers for what the call does.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// See [`crate::sys::writes_words`].
pub fn writes_words() -> bool {
    false
}
