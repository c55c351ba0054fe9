//! The functions that compilers call at entries on x86-64: all registers are live there.

use core::arch::naked_asm;

use super::entry;

/// The size of the call that returns to `pc`: `call rel32`, or `call *slot(%rip)` (`-fno-plt`).
///
/// # Safety
/// `pc` must be the return address of one of the two.
pub(crate) unsafe fn call_size(pc: usize) -> usize {
    let code = pc as *const u8;
    // SAFETY: at least the five bytes of the shorter call lie before `pc`.
    if unsafe { *code.sub(5) } == 0xE8 {
        5
    } else {
        6
    }
}

/// Called by `-pg` after the prologue: the frame pointer points to the return address.
///
/// # Safety
/// Only compiler-made code may call it.
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
/// Only compiler-made code may call it.
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

/// Calls [`entry`] and preserves all registers: the arguments of the traced function, and what its caller holds in
/// registers that calls clobber by the ABI (gcc's `-fipa-ra`). `rdi`, `rsi`: arguments for `entry`; `rax` is free.
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
