//! The parameters of hooks, for all instruction sets.

/// Offsets of what the hooks hand out, the same in every island.
#[derive(Debug, Clone, Copy)]
pub struct IslandLayout {
    /// Offset of two program headers: the island's, and its `.eh_frame_hdr`'s.
    pub program_headers: u32,
    /// Offset of an empty string.
    pub name: u32,
}

/// How much more address space and data a process has than the program asked for, in bytes: its limits are raised by
/// this much, and lowered when the program asks for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Raise {
    /// For `RLIMIT_AS`.
    pub space: u64,
    /// For `RLIMIT_DATA`.
    pub data: u64,
    /// For the hard limits of both.
    pub hard: u64,
}

/// The functions of libc that set and get limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitCall {
    /// `setrlimit(resource, new)`
    Set,
    /// `getrlimit(resource, old)`
    Get,
    /// `prlimit(pid, resource, new, old)`; other processes' limits are left alone.
    Both,
}

/// The functions of libc that make system calls about which the tracer is asked first: they would affect its memory, or
/// the register that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedCall {
    /// `mlockall(flags)`
    LockAll,
    /// `arch_prctl(code, address)` of x86-64
    SetBase,
    /// `syscall(number, first, second)`, which makes any system call.
    ByNumber,
}

pub(crate) const RLIMIT_DATA: i8 = 2;
pub(crate) const RLIMIT_AS: i8 = 9;
pub(crate) const SIGTRAP: i8 = 5;
/// The offset of the flags in libc's `struct sigaction`: after the handler and 128 bytes of signals.
/// (`bits/sigaction.h` of glibc, `signal.h` of musl.)
pub(crate) const ACTION_FLAGS: u32 = 136;
/// `SA_SIGINFO` and `SA_ONSTACK`.
pub(crate) const HANDLER_FLAGS: u32 = 0x4 | 0x0800_0000;
/// `SA_RESETHAND`, which would have the handler run only once.
pub(crate) const RESETS_HANDLER: u32 = 0x8000_0000;
