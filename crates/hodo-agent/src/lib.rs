//! What runs inside the target besides the stubs: the slow paths that every stub may call.
//!
//! Rules for code that lives in someone else's process:
//! 1. It owes nothing to the target: no libc, no thread-local storage, no lock, no memory of its own but the thread
//!    control block.
//! 2. It keeps every register that it does not return something in; it touches no vector register but to keep it where
//!    the kernel would not.
//! 3. A signal may arrive between any two instructions and its handler may enter the same code in the same thread:
//!    whatever is shared with it is changed by one instruction, or in an order in which each step is harmless.
//! 4. It is position independent and is copied as bytes; it refers to nothing outside itself.
//! 5. System calls are made in one place only, and not at all in a thread that began under a seccomp filter.
#![no_std]

#[macro_use]
mod constants;
#[cfg(not(target_arch = "x86_64"))]
#[macro_use]
mod linked;
mod syscalls;

#[cfg(target_arch = "x86_64")]
#[path = "x86_64/mod.rs"]
mod arch;
#[cfg(target_arch = "riscv64")]
#[path = "riscv64/mod.rs"]
mod arch;
#[cfg(target_arch = "aarch64")]
#[path = "aarch64/mod.rs"]
mod arch;

#[cfg(target_arch = "x86_64")]
pub use arch::announce;
pub use arch::{Runtime, call_and_home, runtime, stack, trap_handler};
pub use syscalls::{Syscalls, syscalls};

/// The code in place of the function by which the dynamic linker announces libraries.
#[derive(Debug, Clone, Copy)]
pub struct Announce {
    /// Position-independent code, which is called at its beginning.
    pub code: &'static [u8],
    /// Where a thread is, as an offset into it, that has sent itself a signal for its tracer,
    pub signal: usize,
    /// and one that has met the breakpoint.
    pub breakpoint: usize,
}

/// There is none for this machine: the breakpoint is at the function itself.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub fn announce() -> Option<Announce> {
    None
}

/// The handler of SIGTRAP by which threads come past breakpoints when no tracer is there any more.
///
/// As long as there is one, it is told of each breakpoint first, and the handler never runs. The handler finds where
/// the thread goes on in blocks of addresses. What it does not find there it leaves to the default action, which is
/// what the program has alone.
#[derive(Debug, Clone, Copy)]
pub struct TrapHandler {
    /// Position-independent code and data. The handler is at its beginning.
    pub code: &'static [u8],
    /// Code to which the handler returns, as an offset; `None` where the kernel has its own.
    pub restorer: Option<usize>,
    /// The kernel's `struct sigaction` for it, as an offset. Its first word has to become the handler's address, and
    /// its third one that of the code to which the handler returns.
    pub action: usize,
    /// The `struct sigaction` for the default action.
    pub default: usize,
    /// A word that has to become the address of the first block: the address of the next one, the number of pairs, and
    /// the pairs: the breakpoint's address, and where the thread goes on.
    pub head: usize,
}

/// The code that packs a stack: keeps the words by which callers are found.
#[derive(Debug, Clone, Copy)]
pub struct Stack {
    /// Position-independent code, which is called at its beginning.
    pub code: &'static [u8],
    /// Loads that may fault, and where to go on then, as offsets into it.
    pub faults: [(usize, usize); 2],
}
