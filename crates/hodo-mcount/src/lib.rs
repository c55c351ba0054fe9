//! `mcount`, `_mcount`, `__fentry__`, `__cyg_profile_func_enter` and `__cyg_profile_func_exit` as a shared library, for
//! programs that were built with `-pg`, `-mfentry` or `-finstrument-functions`.
//!
//! `hodo record` does not need it: it replaces such calls of libc by nops, and patches the functions' entries itself. A
//! program that is linked with this library (or has it preloaded) can instead have its own functions called at entries.
//! Until it asks for that, every call returns at once.
//!
//! The hooks get what ftrace passes to its tracers (Linux, `Documentation/trace/ftrace-design.rst`): `frompc` is the
//! address to which the traced function will return, and `selfpc` is the address of the call in the traced function,
//! that is, its return address minus the size of the call. All registers are as they were when the function was
//! entered.
#![cfg(any(target_arch = "x86_64", target_arch = "riscv64"))]

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64.rs")]
mod arch;

use core::sync::atomic::{AtomicUsize, Ordering};

/// What is called at entries: `frompc`, `selfpc`.
pub type EntryHook = extern "C" fn(frompc: usize, selfpc: usize);
/// What is called by `-finstrument-functions`: the function, and the address to which it returns.
pub type CygHook = extern "C" fn(function: usize, call_site: usize);

/// The hooks; 0 means none.
static ENTRY: AtomicUsize = AtomicUsize::new(0);
static CYG_ENTER: AtomicUsize = AtomicUsize::new(0);
static CYG_EXIT: AtomicUsize = AtomicUsize::new(0);

fn address<F>(hook: Option<F>, of: impl FnOnce(F) -> usize) -> usize {
    hook.map_or(0, of)
}

/// Sets what `mcount` and `__fentry__` call; a null pointer means nothing. A hook must not use vector registers wider
/// than 128 bits, and must not be instrumented itself.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_set_entry_hook(hook: Option<EntryHook>) {
    ENTRY.store(address(hook, |hook| hook as usize), Ordering::Release);
}

/// Sets what `__cyg_profile_func_enter` and `__cyg_profile_func_exit` call; null pointers mean nothing.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_set_cyg_hooks(enter: Option<CygHook>, exit: Option<CygHook>) {
    CYG_ENTER.store(address(enter, |hook| hook as usize), Ordering::Release);
    CYG_EXIT.store(address(exit, |hook| hook as usize), Ordering::Release);
}

/// Calls the entry hook. `selfpc` is not adjusted yet.
extern "C" fn entry(frompc: usize, selfpc: usize) {
    let hook = ENTRY.load(Ordering::Acquire);
    if hook != 0 {
        // SAFETY: only `hodo_set_entry_hook` sets it, to such a function.
        let hook: EntryHook = unsafe { core::mem::transmute(hook) };
        // SAFETY: `selfpc` is where the instrumented function's call of mcount returns to.
        hook(frompc, selfpc - unsafe { arch::call_size(selfpc) });
    }
}

fn cyg(hook: &AtomicUsize, function: usize, call_site: usize) {
    let hook = hook.load(Ordering::Acquire);
    if hook != 0 {
        // SAFETY: only `hodo_set_cyg_hooks` sets it, to such a function.
        let hook: CygHook = unsafe { core::mem::transmute(hook) };
        hook(function, call_site);
    }
}

/// Called by `-finstrument-functions` when a function is entered.
#[unsafe(no_mangle)]
pub extern "C" fn __cyg_profile_func_enter(function: usize, call_site: usize) {
    cyg(&CYG_ENTER, function, call_site);
}

/// Called by `-finstrument-functions` when a function is left.
#[unsafe(no_mangle)]
pub extern "C" fn __cyg_profile_func_exit(function: usize, call_site: usize) {
    cyg(&CYG_EXIT, function, call_site);
}
