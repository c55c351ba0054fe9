//! What the kernel does differently per instruction set: system call numbers, and the end of a signal handler.

use core::arch::global_asm;

use super::returns::{DISTANCE, TOP};
use crate::environment::Window;
use hodo_sys::sys::{Errno, call};

/// Numbers of system calls.
pub(crate) mod number {
    pub const RT_SIGPROCMASK: usize = 14;
    pub const MADVISE: usize = 28;
}
const RT_SIGACTION: usize = 13;

/// A memory barrier in all running threads of the process.
pub(crate) fn barrier() {
    hodo_sys::sys::sync_core();
}

/// What a signal does.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Action {
    pub handler: usize,
    pub flags: u64,
    pub mask: u64,
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Default)]
struct Raw {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

const SA_RESTORER: u64 = 0x0400_0000;

// Unwinders and debuggers recognize the end of a signal frame by exactly these bytes.
global_asm!(
    ".pushsection .text.hodo_engine_restorer,\"ax\",@progbits",
    ".hidden hodo_engine_restorer",
    ".globl hodo_engine_restorer",
    ".type hodo_engine_restorer,@function",
    "nop",
    "hodo_engine_restorer:",
    ".byte 0x48, 0xC7, 0xC0, 0x0F, 0, 0, 0, 0x0F, 0x05",
    ".size hodo_engine_restorer, . - hodo_engine_restorer",
    ".popsection",
);

unsafe extern "C" {
    fn hodo_engine_restorer();
}

/// Returns whether an address is in the code by which signal handlers return.
pub(crate) fn is_restorer(addr: u64) -> bool {
    let start = hodo_engine_restorer as *const () as u64;
    (start..start + 9).contains(&addr)
}

/// Sets what a signal does, and returns what it did before.
///
/// # Safety
/// The action's handler must be a signal handler.
pub(crate) unsafe fn sigaction(signal: i32, new: Option<&Action>) -> Result<Action, Errno> {
    let mut old = Raw::default();
    let new = new.map(|action| Raw {
        handler: action.handler,
        flags: action.flags | SA_RESTORER,
        restorer: hodo_engine_restorer as *const () as usize,
        mask: action.mask,
    });
    let pointer = new.as_ref().map_or(0, |action| &raw const *action as usize);
    let args = [signal as usize, pointer, &raw mut old as usize, 8, 0, 0];
    // SAFETY: both have the kernel's form; the caller answers for the handler.
    unsafe { call(RT_SIGACTION, args) }?;
    Ok(Action {
        handler: old.handler,
        flags: old.flags,
        mask: old.mask,
    })
}

/// Returns whether there are vector registers that code must ask for. On x86-64, the shared code asks the processor.
pub(crate) fn has_vectors() -> bool {
    false
}

/// The area below the library mappings that may hold stacks.
const BELOW: u64 = 1 << 40;

/// Where the shadow goes in a process that maps memory at `here`.
pub(crate) fn window(here: u64) -> Window {
    Window {
        low: (here - BELOW) & !0xFFFF,
        top: TOP,
        distance: DISTANCE,
    }
}
