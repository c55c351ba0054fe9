//! `mcount`, `_mcount`, `__fentry__`, `__cyg_profile_func_enter` and `__cyg_profile_func_exit` as a shared library, for
//! programs that were built with `-pg`, `-mfentry` or `-finstrument-functions`.
//!
//! `hodo record` does not need it: it makes nops of such calls of libc, and patches the functions' entries itself. A
//! program that is linked with this library (or has it preloaded) can have its own functions called at entries instead.
//! Until it asks for that, every call returns at once.
//!
//! What the hooks are told is what ftrace tells its tracers (Linux, `Documentation/trace/ftrace-design.rst`): `frompc` is
//! the address to which the traced function will return, `selfpc` the address of the call in the traced function, that
//! is, its return address less the size of the call. All registers are as they were when the function was entered.
#![cfg(target_arch = "x86_64")]

use core::arch::naked_asm;
use core::sync::atomic::{AtomicUsize, Ordering};

/// What is called at entries: `frompc`, `selfpc`.
pub type EntryHook = extern "C" fn(frompc: usize, selfpc: usize);
/// What is called by `-finstrument-functions`: the function, and the address to which it returns.
pub type CygHook = extern "C" fn(function: usize, call_site: usize);

/// The hooks; 0: none.
static ENTRY: AtomicUsize = AtomicUsize::new(0);
static CYG_ENTER: AtomicUsize = AtomicUsize::new(0);
static CYG_EXIT: AtomicUsize = AtomicUsize::new(0);

fn address<F>(hook: Option<F>, of: impl FnOnce(F) -> usize) -> usize {
    hook.map_or(0, of)
}

/// Sets what `mcount` and `__fentry__` call; a null pointer: nothing. A hook must not use vector registers wider than
/// 128 bits, and must not be instrumented itself.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_set_entry_hook(hook: Option<EntryHook>) {
    ENTRY.store(address(hook, |hook| hook as usize), Ordering::Release);
}

/// Sets what `__cyg_profile_func_enter` and `__cyg_profile_func_exit` call; null pointers: nothing.
#[unsafe(no_mangle)]
pub extern "C" fn hodo_set_cyg_hooks(enter: Option<CygHook>, exit: Option<CygHook>) {
    CYG_ENTER.store(address(enter, |hook| hook as usize), Ordering::Release);
    CYG_EXIT.store(address(exit, |hook| hook as usize), Ordering::Release);
}

/// The size of the call that returns to `pc`: `call rel32`, or `call *slot(%rip)` (`-fno-plt`).
///
/// # Safety
/// `pc` must be the return address of one of the two.
unsafe fn call_size(pc: usize) -> usize {
    let code = pc as *const u8;
    // SAFETY: at least the five bytes of the shorter call lie before `pc`.
    if unsafe { *code.sub(5) } == 0xE8 {
        5
    } else {
        6
    }
}

/// Calls the entry hook. `selfpc` is not adjusted yet.
extern "C" fn entry(frompc: usize, selfpc: usize) {
    let hook = ENTRY.load(Ordering::Acquire);
    if hook != 0 {
        // SAFETY: only `hodo_set_entry_hook` sets it, to such a function.
        let hook: EntryHook = unsafe { core::mem::transmute(hook) };
        // SAFETY: `selfpc` is where the instrumented function's call of mcount returns to.
        hook(frompc, selfpc - unsafe { call_size(selfpc) });
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

/// Called by `-pg` behind the prologue: the frame pointer leads to the return address.
///
/// # Safety
/// To be called by compiler-made code only.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mcount() {
    naked_asm!(
        "push rax",
        "push rdi",
        "push rsi",
        "mov rdi, [rbp + 8]",
        "mov rsi, [rsp + 24]",
        "call {save}",
        "pop rsi",
        "pop rdi",
        "pop rax",
        "ret",
        save = sym save,
    );
}

/// The same under its other name.
///
/// # Safety
/// As [`mcount`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _mcount() {
    naked_asm!("jmp {mcount}", mcount = sym mcount);
}

/// Called by `-mfentry` as the first instruction of a function: its return address is next on the stack.
///
/// # Safety
/// To be called by compiler-made code only.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fentry__() {
    naked_asm!(
        "push rax",
        "push rdi",
        "push rsi",
        "mov rdi, [rsp + 32]",
        "mov rsi, [rsp + 24]",
        "call {save}",
        "pop rsi",
        "pop rdi",
        "pop rax",
        "ret",
        save = sym save,
    );
}

/// Calls [`entry`] with all registers kept: the arguments of the traced function, and what its caller holds in registers
/// that calls clobber by the ABI (gcc's `-fipa-ra`). `rdi`, `rsi`: arguments for `entry`; `rax` is free.
#[unsafe(naked)]
unsafe extern "C" fn save() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push rcx",
        "push rdx",
        "push r8",
        "push r9",
        "push r10",
        "push r11",
        "sub rsp, 512",
        "and rsp, -64",
        "fxsave64 [rsp]",
        "call {entry}",
        "fxrstor64 [rsp]",
        "lea rsp, [rbp - 48]",
        "pop r11",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rdx",
        "pop rcx",
        "pop rbp",
        "ret",
        entry = sym entry,
    );
}
