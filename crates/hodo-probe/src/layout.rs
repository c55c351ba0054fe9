//! Structures that both the assembly of [`common`](super::common) and the rest of the engine read.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

pub use super::arch::Registers;

/// What is called at a probe, with the registers and the word given at registration.
///
/// It runs wherever the probed instruction does: perhaps in a signal handler, with any lock held, or in the middle of
/// `malloc`. It must not unwind (a panic ends the process) or leave by `longjmp`. A fault in it (SIGSEGV, SIGBUS,
/// SIGILL, SIGFPE) ends it, disables its probe and is counted; the program continues.
pub type Handler = extern "C" fn(registers: &mut Registers, data: *mut c_void);

/// What the engine knows of a thread. Entries form a table; the thread's own memory holds the address of its entry.
#[repr(C, align(64))]
pub(super) struct Thread {
    /// The kernel's thread id; 0 if the entry is free.
    pub tid: AtomicU32,
    /// 1 while a handler runs.
    pub busy: AtomicU32,
    /// Increases with each hit.
    pub sequence: AtomicU64,
    /// Where execution continues if a handler faults, and with which stack pointer.
    pub recover_pc: AtomicU64,
    pub recover_sp: AtomicU64,
    /// The probe whose handler is running.
    pub probe: AtomicPtr<Node>,
    /// 1 while a breakpoint is being handled.
    pub trapping: AtomicU32,
    /// How a simulated memory access failed: signal, code, address.
    pub fault: [AtomicU64; 3],
}

/// One probe, as hits see it.
#[repr(C)]
pub(super) struct Node {
    /// A [`Handler`], or 0.
    pub before: usize,
    pub data: *mut c_void,
    /// 1 if the handlers are called.
    pub enabled: AtomicU32,
    pub faulted: AtomicU32,
    pub missed: AtomicU64,
    pub faults: AtomicU64,
    /// A [`Handler`], or 0.
    pub after: usize,
    pub counts: AtomicU64,
    /// The detour's counter for hits that `counts` lacks, or null; and its value when the probe got it.
    pub counter: AtomicPtr<AtomicU64>,
    pub base: AtomicU64,
    /// One of `Execution` as a number, or 0.
    pub execution: u32,
    /// It does nothing at the entry: the probe has only a return handler.
    pub idle: bool,
    /// One of `KEEP_…`: what the handler before the instruction needs.
    pub keep: u32,
}

/// How much of the vector state handlers may change.
pub(super) const KEEP_NONE: u32 = 0;
pub(super) const KEEP_SOME: u32 = 1;
pub(super) const KEEP_ALL: u32 = 2;

/// The part of a site that hits use.
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
