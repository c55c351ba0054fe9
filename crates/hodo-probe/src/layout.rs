//! Structures that both the assembly of [`common`](super::common) and the rest of the engine read.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

pub use super::arch::Registers;

/// What is called at a probe: with the registers, and the word given at registration.
///
/// It runs wherever the probed instruction does: perhaps in a signal handler, with any lock held, in the middle of
/// `malloc`. It must not unwind (a panic ends the process) and not leave by `longjmp`. A fault in it (SIGSEGV, SIGBUS,
/// SIGILL, SIGFPE) ends it, disables its probe and is counted; the program goes on.
pub type Handler = extern "C" fn(registers: &mut Registers, data: *mut c_void);

/// What the engine knows of a thread. One of a table; its address is in the thread's own memory.
#[repr(C, align(64))]
pub(super) struct Thread {
    /// The kernel's number of the thread; 0 if nobody has this entry.
    pub tid: AtomicU32,
    /// 1 while a handler runs.
    pub busy: AtomicU32,
    /// Goes up with each hit.
    pub sequence: AtomicU64,
    /// Where to go on when a handler faults, and with which stack pointer.
    pub recover_pc: AtomicU64,
    pub recover_sp: AtomicU64,
    /// The probe whose handler runs.
    pub probe: AtomicPtr<Node>,
    /// 1 while a breakpoint is dealt with.
    pub trapping: AtomicU32,
    /// What a simulated access to memory failed with: signal, code, address.
    pub fault: [AtomicU64; 3],
}

/// One probe, as hits see it.
#[repr(C)]
pub(super) struct Node {
    /// A [`Handler`], or 0.
    pub before: usize,
    pub data: *mut c_void,
    /// 1 if the handlers are to be called.
    pub enabled: AtomicU32,
    pub faulted: AtomicU32,
    pub missed: AtomicU64,
    pub faults: AtomicU64,
    /// A [`Handler`], or 0.
    pub after: usize,
    pub counts: AtomicU64,
    /// Where its detour counts what `counts` does not have, or null; and what was there when the probe got it.
    pub counter: AtomicPtr<AtomicU64>,
    pub base: AtomicU64,
    /// One of `Execution` as a number, or 0.
    pub execution: u32,
    /// It has nothing to do: the probe has a return handler alone.
    pub idle: bool,
    /// One of `KEEP_…`: what the handler before the instruction needs.
    pub keep: u32,
}

/// How much of the vector state handlers may change.
pub(super) const KEEP_NONE: u32 = 0;
pub(super) const KEEP_SOME: u32 = 1;
pub(super) const KEEP_ALL: u32 = 2;

/// The part of a site that hits look at.
#[repr(C)]
pub(super) struct Head {
    pub addr: u64,
    /// Pointers to nodes, the last one null.
    pub list: AtomicPtr<*const Node>,
    /// One of `KEEP_…`: the most that a handler of the list needs.
    pub keep: AtomicU32,
    /// 1 while a breakpoint or jump leads here.
    pub armed: AtomicU32,
}
