//! Whether there are the registers of a vector extension, for the code that keeps them: RISC-V's V, Arm's SVE.

use core::arch::global_asm;
use core::sync::atomic::{AtomicUsize, Ordering};

// Hidden, like `hodo_ftrace_state`.
global_asm!(
    ".pushsection .bss.hodo_ftrace_scalable, \"aw\", @nobits",
    ".balign 8",
    ".globl hodo_ftrace_scalable",
    ".hidden hodo_ftrace_scalable",
    ".type hodo_ftrace_scalable, @object",
    ".size hodo_ftrace_scalable, 8",
    "hodo_ftrace_scalable:",
    ".zero 8",
    ".popsection",
);

unsafe extern "C" {
    safe static hodo_ftrace_scalable: AtomicUsize;
    /// [`crate::Environment::has_vectors`].
    safe fn __hodo_ftrace_has_vectors() -> usize;
}

/// Asks the environment.
pub(crate) fn find() {
    hodo_ftrace_scalable.store(__hodo_ftrace_has_vectors(), Ordering::Relaxed);
}
