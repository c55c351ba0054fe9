//! What is the same for all instruction sets that use Linux's generic system call numbers.

/// Changes of code are written in aligned units of this many bytes: the kernel's `memcpy` stores such words at once,
/// and everything else byte by byte. Nobody may execute half of a changed instruction.
pub const UNIT: u64 = 4;

/// Numbers of system calls, from the kernel's `include/uapi/asm-generic/unistd.h`.
pub mod number {
    pub const IOCTL: usize = 29;
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
    pub const MPROTECT: usize = 226;
    pub const MADVISE: usize = 233;
}
