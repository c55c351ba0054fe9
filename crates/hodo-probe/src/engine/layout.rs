//! What the assembly of [`common`](super::common) and the rest of the engine both look at.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// The general registers of the program at a probe. What a handler changes is changed for the program.
///
/// Vector and floating-point registers are the program's when a handler begins, if it begins by reading them; whatever it
/// does with them, the program's come back.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Registers {
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rbx: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub flags: u64,
    /// Address of the instruction that comes next: the probed one in a handler before it. A handler that changes it has the
    /// program go on there; the probed instruction is not executed then.
    pub pc: u64,
}

impl Registers {
    /// An argument of the function that begins here, by the C convention (System V ABI, x86-64 supplement, 3.2.3): the first
    /// six, counted from 0, that are integers or pointers.
    #[must_use]
    pub fn argument(&self, index: usize) -> Option<u64> {
        [self.rdi, self.rsi, self.rdx, self.rcx, self.r8, self.r9]
            .get(index)
            .copied()
    }

    /// Has the function that begins here return this value without running.
    ///
    /// # Safety
    /// The probe must stand at a function's first instruction, so that the stack pointer leads to its return address.
    pub unsafe fn return_now(&mut self, value: u64) {
        self.rax = value;
        // SAFETY: the caller says that the return address is there.
        self.pc = unsafe { (self.rsp as *const u64).read() };
        self.rsp += 8;
    }

    pub(super) fn general(&mut self) -> &mut [u64; 16] {
        // SAFETY: (1) the first sixteen fields are words in the order of the processor's numbers; (2) the form is C's.
        unsafe { &mut *(&raw mut *self).cast() }
    }
}

/// What is called at a probe: with the registers, and the word given at registration.
///
/// It runs wherever the probed instruction does: perhaps in a signal handler, with any lock held, in the middle of
/// `malloc`. It must not unwind (a panic ends the process) and not leave by `longjmp`. A fault in it (SIGSEGV, SIGBUS, SIGILL,
/// SIGFPE) ends it, disables its probe and is counted; the program goes on.
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
pub(super) const KEEP_SSE: u32 = 1;
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
