//! The parameters of hooks, for all instruction sets.

/// Offsets in every island of what the hooks hand out.
#[derive(Debug, Clone, Copy)]
pub struct IslandLayout {
    /// Of two program headers: of the island, and of its `.eh_frame_hdr`.
    pub program_headers: u32,
    /// Of an empty string.
    pub name: u32,
}

/// What the address space and the data of a process have more than the program asked for, in bytes: its limits are
/// raised by as much, and lowered when it asks for them.
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

pub(crate) const RLIMIT_DATA: i8 = 2;
pub(crate) const RLIMIT_AS: i8 = 9;
pub(crate) const SIGTRAP: i8 = 5;
/// Where a `struct sigaction` of libc has its flags: after the handler and 128 bytes of signals. (`bits/sigaction.h` of
/// glibc, `signal.h` of musl.)
pub(crate) const ACTION_FLAGS: u32 = 136;
/// `SA_SIGINFO` and `SA_ONSTACK`.
pub(crate) const HANDLER_FLAGS: u32 = 0x4 | 0x0800_0000;
/// `SA_RESETHAND`, which would have the handler run only once.
pub(crate) const RESETS_HANDLER: u32 = 0x8000_0000;
