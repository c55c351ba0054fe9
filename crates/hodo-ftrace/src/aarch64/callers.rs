//! What trampolines lead to: `ftrace_caller` and `ftrace_regs_caller` of the kernel.
//!
//! A trampoline has loaded the mask of the site into `x17`. `x30` is the address after the site, and `x9` the return
//! address of the function, which has done nothing yet.

use core::arch::naked_asm;

use crate::dynamic::entered;

/// The registers of a function at its site.
///
/// A tracer with [`crate::dynamic::IP_MODIFY`] may change them. At a call of `_mcount`, which no tracer changes, the
/// prologue has been executed: `x0` is the return address of the function there, and `x30` is `ip`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    /// Where execution goes on: after the site.
    pub ip: usize,
    /// `x0` to `x30`; `x30` is the return address of the function. Changes of `x9`, `x16` and `x17` have no effect.
    pub x: [usize; 31],
    /// The stack pointer. Changes have no effect.
    pub sp: usize,
}

/// The length of a site.
pub(crate) const SITE: usize = 8;

/// How far the frame record of the caller may be above the stack pointer.
const FARTHEST_RECORD: usize = 1 << 20;

/// Calls the tracers.
unsafe extern "C" fn enter(registers: *mut Registers, mask: u64) {
    const FP: usize = 29;
    const LR: usize = 30;
    // SAFETY: the stub passes what it has on the stack.
    let (parent, stack, frame_pointer, ip) = unsafe {
        let x = &raw mut (*registers).x;
        let parent = (&raw mut (*x)[LR]).cast::<usize>();
        (parent, (*registers).sp, (*x)[FP], (*registers).ip - SITE)
    };
    // Calls are known by the caller's frame record (`arch::key`), to which the frame pointer still leads.
    let distance = frame_pointer.wrapping_sub(stack);
    let is_record = distance < FARTHEST_RECORD && frame_pointer.is_multiple_of(8);
    let key = if is_record { frame_pointer } else { 0 };
    let place = stack - size_of::<usize>();
    // SAFETY: the stub passes what this requires.
    unsafe { entered(parent, key, place, frame_pointer, ip, mask, registers) };
}

/// Keeps and gives all general registers around [`enter`].
#[unsafe(naked)]
pub(super) unsafe extern "C" fn first() {
    naked_asm!(
        ".cfi_startproc",
        // For unwinders, the stub returns by `x17`: `x30` has another value in the function to which it returns.
        ".cfi_return_column 17",
        ".cfi_register 17, 30",
        ".cfi_register 30, 9",
        "hint 36",
        "sub sp, sp, #288",
        ".cfi_def_cfa_offset 288",
        "stp x30, x0, [sp]",
        ".cfi_offset 17, -288",
        "stp x1, x2, [sp, #16]",
        "stp x3, x4, [sp, #32]",
        "stp x5, x6, [sp, #48]",
        "stp x7, x8, [sp, #64]",
        "stp x9, x10, [sp, #80]",
        "stp x11, x12, [sp, #96]",
        "stp x13, x14, [sp, #112]",
        "stp x15, x16, [sp, #128]",
        "stp x17, x18, [sp, #144]",
        "stp x19, x20, [sp, #160]",
        "stp x21, x22, [sp, #176]",
        "stp x23, x24, [sp, #192]",
        "stp x25, x26, [sp, #208]",
        "stp x27, x28, [sp, #224]",
        "stp x29, x9, [sp, #240]",
        ".cfi_offset 29, -48",
        ".cfi_offset 30, -40",
        "add x9, sp, #288",
        "str x9, [sp, #256]",
        // A frame record of the stub's own, for those who follow frame pointers.
        "stp x29, x30, [sp, #272]",
        "add x29, sp, #272",
        "mov x0, sp",
        "mov x1, x17",
        "bl {enter}",
        "ldp x16, x0, [sp]",
        "ldp x1, x2, [sp, #16]",
        "ldp x3, x4, [sp, #32]",
        "ldp x5, x6, [sp, #48]",
        "ldp x7, x8, [sp, #64]",
        "ldp x9, x10, [sp, #80]",
        "ldp x11, x12, [sp, #96]",
        "ldp x13, x14, [sp, #112]",
        "ldr x15, [sp, #128]",
        "ldr x18, [sp, #152]",
        "ldp x19, x20, [sp, #160]",
        "ldp x21, x22, [sp, #176]",
        "ldp x23, x24, [sp, #192]",
        "ldp x25, x26, [sp, #208]",
        "ldp x27, x28, [sp, #224]",
        "ldp x29, x30, [sp, #240]",
        ".cfi_restore 29",
        ".cfi_restore 30",
        ".cfi_register 17, 16",
        "add sp, sp, #288",
        ".cfi_def_cfa_offset 0",
        // Not `br`: in guarded memory, that may only lead to a landing instruction. The trampoline was called, too.
        "ret x16",
        ".globl hodo_ftrace_first_end",
        ".hidden hodo_ftrace_first_end",
        "hodo_ftrace_first_end:",
        ".cfi_endproc",
        enter = sym enter,
    );
}

/// The code of the stub that can redirect functions.
pub(crate) fn redirecting() -> core::ops::Range<usize> {
    unsafe extern "C" {
        static hodo_ftrace_first_end: u8;
    }
    first as *const () as usize..&raw const hodo_ftrace_first_end as usize
}
