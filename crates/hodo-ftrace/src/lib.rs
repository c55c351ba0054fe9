//! The layers of the kernel's function tracer (Linux, `Documentation/trace/ftrace-design.rst`) for code that traces
//! itself: programs that were built with `-pg`, `-mfentry` or `-finstrument-functions`, and kernels.
//!
//! * **Entries.** Compilers call `mcount`, `_mcount`, `__mcount` or `__fentry__` in each function. While nobody
//!   listens, these compare and return. Otherwise they keep all general registers, and call the hook of [`set_entry`].
//! * **Returns.** With the hooks of [`set_graph`], an entry also replaces the return address of the function by that of
//!   *`return_to_handler`*, as [`prepare_ftrace_return`] does. The function then returns to our code, which calls the
//!   second hook, and goes on where the function was called.
//! * **`-finstrument-functions`.** `__cyg_profile_func_enter` and `__cyg_profile_func_exit` call the hooks of
//!   [`set_cyg`].
//!
//! This crate uses no C library, no standard library and no memory of its own but a few words. What it needs from the
//! place where it runs is the trait [`Environment`], which the program or kernel implements once, and names with
//! [`set_environment`]. `hodo-ftrace-c` does that for Linux programs.
//!
//! # Registers
//!
//! Hooks are ordinary functions. All general registers are preserved around them. Floating-point and vector registers
//! are too, if the hook's `flags` contain [`VECTORS`]: the whole state that the kernel has enabled, except for AMX
//! tiles (x86-64), or `ft0`–`ft11`, `fa0`–`fa7` and `fcsr` (RISC-V), or `q0`–`q31`, `fpcr` and `fpsr` (AArch64), and
//! the registers of the V extension or of SVE, if [`Environment::has_vectors`]. Saving and restoring it took 180 ns
//! with AVX-512. Without this flag, the hook promises not to use such registers. A C compiler does so with
//! `-mgeneral-regs-only` (x86-64). Who knows better what hooks change says so: [`set_entry_keeping`],
//! [`set_graph_keeping`], [`dynamic::register_keeping`]. `hodo-ftrace-c` reads their code.
//!
//! On RISC-V and AArch64, `_mcount` is called like any other function: `t0` and `t1`, or `x16` and `x17`, need not
//! survive.
//!
//! # The shadow
//!
//! The return address of a traced function is kept at its stack address minus [`SHADOW_DISTANCE`], the *shadow*. (On
//! AArch64, the address of the caller's frame record takes the place of this address.) Frame
//! tables say so to unwinders. Thus `_Unwind_Backtrace` and C++ exceptions pass through traced functions, and a
//! function returns to the right place even if the list of open calls has lost it.
//!
//! The list of open calls ([`Thread`]) has a fixed length. Calls that are too deep are counted, and their returns are
//! not seen. Calls that `longjmp` or an exception left are dropped when a later entry or return shows that their frames
//! are gone: a frame further down the stack than the current one is.
//!
//! # Limits
//!
//! * A hook must return. It must not throw, `longjmp` or end its thread.
//! * While a hook runs, its thread calls no other hook on the same stack; what it calls is counted as missed.
//! * A signal handler on another stack at higher addresses makes the calls below it look gone: their returns are not
//!   seen, but they do return.
//! * `mcount` finds the return address by the frame pointer. If a function realigns its stack (x86-64), this is a copy,
//!   and its return is not seen; `-mfentry` has no such limit. On RISC-V, returns need `-fno-omit-frame-pointer`,
//!   and so does `frompc` in code of clang 14, which does not pass it.
//! * RISC-V functions with variable arguments do return, but unwinders do not get through them while their returns are
//!   traced.
//! * On AArch64, returns need a frame record. If the return address is signed (`-mbranch-protection`), the prologue
//!   must show with which stack pointer. In [`prepare_ftrace_return`], `parent` must be in such a record: the caller's
//!   frame pointer is below it. It must not be signed.
//! * Hardware shadow stacks (x86-64 CET) must be off when returns are traced.
//! * The kernel unwinders and gdb check that frames are in order; gdb stops at a traced return.
#![no_std]
#![cfg(any(
    target_arch = "x86_64",
    target_arch = "riscv64",
    target_arch = "aarch64"
))]

#[cfg_attr(target_arch = "x86_64", path = "x86_64/mod.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64/mod.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64/mod.rs")]
mod arch;
mod call;
mod cyg;
pub mod dynamic;
mod entry;
pub mod environment;
mod graph;
mod hooks;
pub mod livepatch;
mod shadow;
mod state;
#[cfg_attr(target_arch = "x86_64", path = "x86_64/stubs.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64/stubs.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64/stubs.rs")]
mod stubs;
mod thread;
#[cfg(test)]
mod unit;

pub use call::Call;
pub use environment::Environment;
pub use graph::prepare_ftrace_return;
pub use shadow::{SHADOW_DISTANCE, original_return};
pub use state::{
    CygHook, CygOps, EntryHook, EntryOps, FrameTest, GraphEntry, GraphExit, GraphOps, VECTORS,
    Vectors, set_cyg, set_entry, set_entry_keeping, set_frame_test, set_graph, set_graph_keeping,
};
/// Calls a function with two words while floating-point and vector registers are kept, for hooks without [`VECTORS`]
/// that seldom need a function which uses them. Returns what it returns.
pub fn with_vectors(
    function: extern "C" fn(usize, usize) -> usize,
    first: usize,
    second: usize,
) -> usize {
    // SAFETY: it takes these two words.
    unsafe { arch::call_with_vectors(function as usize, first, second) }
}

#[cfg(target_arch = "x86_64")]
pub use stubs::__fentry__;
pub use stubs::{__mcount, _mcount, mcount};
pub use thread::{Counts, Open, Thread, stack_slot};

/// Returns whether the calling thread is in a hook.
#[inline(never)]
pub fn is_in_hook() -> bool {
    let here = 0u8;
    let stack = &raw const here as usize;
    environment::thread().is_some_and(|thread| thread.is_in_hook(stack))
}
