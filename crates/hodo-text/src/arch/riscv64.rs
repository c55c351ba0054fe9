//! System calls of RISC-V Linux.

use core::arch::asm;

/// Numbers, from the kernel's `include/uapi/asm-generic/unistd.h` and `arch/riscv/include/uapi/asm/unistd.h`.
pub mod number {
    pub const OPENAT: usize = 56;
    pub const CLOSE: usize = 57;
    pub const READ: usize = 63;
    pub const PREAD: usize = 67;
    pub const PWRITE: usize = 68;
    pub const PPOLL: usize = 73;
    pub const FUTEX: usize = 98;
    pub const NANOSLEEP: usize = 101;
    pub const SCHED_YIELD: usize = 124;
    pub const TGKILL: usize = 131;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const GETPID: usize = 172;
    pub const GETEUID: usize = 175;
    pub const GETTID: usize = 178;
    pub const GETSOCKOPT: usize = 209;
    pub const MUNMAP: usize = 215;
    pub const MMAP: usize = 222;
    pub const MADVISE: usize = 233;
    pub const FLUSH_ICACHE: usize = 259;
}

/// Makes a system call.
///
/// # Safety
/// As the system call.
pub unsafe fn call(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel keeps all registers but a0; the caller answers for what the call does.
    unsafe {
        asm!(
            "ecall",
            in("a7") number,
            inlateout("a0") args[0] => result,
            in("a1") args[1],
            in("a2") args[2],
            in("a3") args[3],
            in("a4") args[4],
            in("a5") args[5],
            options(nostack),
        );
    }
    result
}

/// See [`crate::sys::writes_words`].
pub fn writes_words() -> bool {
    false
}
