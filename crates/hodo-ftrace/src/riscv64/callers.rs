//! What trampolines lead to: `ftrace_caller` and `ftrace_regs_caller` of the kernel.
//!
//! A trampoline has saved `t1` and `t2` on the stack, and `t1` leads to the mask of the site. `t0` is the address after
//! the site, and `ra` the return address of the function, which has done nothing yet.

use core::arch::naked_asm;

use crate::dynamic::entered;

/// The registers of a function at its site.
///
/// A tracer with [`crate::dynamic::IP_MODIFY`] may change them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    /// Where execution goes on: after the site.
    pub ip: usize,
    /// `x0` to `x31`. Changes of `x0`, of the stack pointer `x2`, and of `t0`, `x5`, have no effect.
    pub x: [usize; 32],
}

/// The length of a site.
pub(crate) const SITE: usize = 8;
/// Where in a trampoline the mask is, and where `t1` leads that the stub gets.
pub(super) const MASK: usize = 24;
pub(super) const T1: usize = 6;

/// Calls the tracers.
unsafe extern "C" fn enter(registers: *mut Registers, mask: u64) {
    const RA: usize = 1;
    const SP: usize = 2;
    const S0: usize = 8;
    // SAFETY: the stub passes what it has on the stack.
    let (parent, stack, frame_pointer, ip) = unsafe {
        let x = &raw mut (*registers).x;
        let parent = (&raw mut (*x)[RA]).cast::<usize>();
        (parent, (*x)[SP], (*x)[S0], (*registers).ip - SITE)
    };
    // Where the function will store the address, if it does.
    let slot = stack - size_of::<usize>();
    // SAFETY: the stub passes what this requires.
    unsafe { entered(parent, slot, slot, frame_pointer, ip, mask, registers) };
}

/// Keeps and gives all general registers around [`enter`].
#[unsafe(naked)]
pub(super) unsafe extern "C" fn first() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_return_column 5",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x6, -16",
        ".cfi_offset x7, -8",
        "addi sp, sp, -272",
        ".cfi_def_cfa_offset 288",
        "sd t0, 0(sp)",
        ".cfi_offset x5, -288",
        ".irp n, 1,3,4,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "sd x\\n, 8 + 8 * \\n(sp)",
        ".endr",
        ".cfi_offset x1, -272",
        "addi t0, sp, 288",
        "sd t0, 24(sp)",
        "sd zero, 8(sp)",
        "ld a1, {mask}(t1)",
        "ld t1, 272(sp)",
        "sd t1, 56(sp)",
        "ld t2, 280(sp)",
        "sd t2, 64(sp)",
        "sd zero, 48(sp)",
        "mv a0, sp",
        "call {enter}",
        ".irp n, 1,3,4,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "ld x\\n, 8 + 8 * \\n(sp)",
        ".endr",
        ".cfi_restore x1",
        ".cfi_restore x7",
        "ld t1, 56(sp)",
        ".cfi_restore x6",
        "ld t0, 0(sp)",
        ".cfi_restore x5",
        "addi sp, sp, 288",
        ".cfi_def_cfa_offset 0",
        "jr t0",
        ".globl hodo_ftrace_first_end",
        ".hidden hodo_ftrace_first_end",
        "hodo_ftrace_first_end:",
        ".cfi_endproc",
        enter = sym enter,
        mask = const MASK - T1,
    );
}

/// The code of the stub that can redirect functions.
pub(crate) fn redirecting() -> core::ops::Range<usize> {
    unsafe extern "C" {
        static hodo_ftrace_first_end: u8;
    }
    first as *const () as usize..&raw const hodo_ftrace_first_end as usize
}
