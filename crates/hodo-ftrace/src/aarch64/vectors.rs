//! Keeps floating-point and vector registers around a call.

use core::arch::naked_asm;

/// An instruction that changes one vector register clears its bits above 128, so there is no cheaper way.
pub(crate) use call_with_vectors as call_with_part;

/// Calls a function with two words, and returns what it returns. All vector registers, predicates and their control
/// registers are afterwards as before: SVE's `z0` to `z31`, `p0` to `p15` and FFR, at the vector length of the thread;
/// or `q0` to `q31`. So are `fpcr` and `fpsr`. (Functions preserve only the lower halves of `q8` to `q15`.)
///
/// # Safety
/// `function` takes no more than two words, and may be called with these.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_with_vectors(
    function: usize,
    first: usize,
    second: usize,
) -> usize {
    naked_asm!(
        // Assembly outside Rust functions does not know what the target has.
        ".arch_extension fp",
        ".arch_extension simd",
        ".arch_extension sve",
        ".cfi_startproc",
        "stp x29, x30, [sp, #-32]!",
        ".cfi_def_cfa_offset 32",
        ".cfi_offset x29, -32",
        ".cfi_offset x30, -24",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "mrs x9, fpcr",
        "mrs x10, fpsr",
        "stp x9, x10, [x29, #16]",
        "adrp x9, hodo_ftrace_scalable",
        "ldr x9, [x9, #:lo12:hodo_ftrace_scalable]",
        "cbnz x9, 2f",
        "sub sp, sp, #512",
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "str q\\n, [sp, #\\n * 16]",
        ".endr",
        "mov x9, x0",
        "mov x0, x1",
        "mov x1, x2",
        "blr x9",
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "ldr q\\n, [sp, #\\n * 16]",
        ".endr",
        "1: ldp x9, x10, [x29, #16]",
        "msr fpcr, x9",
        "msr fpsr, x10",
        "mov sp, x29",
        ".cfi_def_cfa_register sp",
        "ldp x29, x30, [sp], #32",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        // The frame is that of the call.
        ".cfi_def_cfa x29, 32",
        ".cfi_offset x29, -32",
        ".cfi_offset x30, -24",
        "2: addvl sp, sp, #-32",
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "str z\\n, [sp, #\\n, mul vl]",
        ".endr",
        // The predicates have two vectors' bytes together; FFR gets one more, which keeps the stack aligned.
        "addvl sp, sp, #-3",
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
        "str p\\n, [sp, #\\n, mul vl]",
        ".endr",
        "rdffr p0.b",
        "str p0, [sp, #16, mul vl]",
        "mov x9, x0",
        "mov x0, x1",
        "mov x1, x2",
        "blr x9",
        "ldr p0, [sp, #16, mul vl]",
        "wrffr p0.b",
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
        "ldr p\\n, [sp, #\\n, mul vl]",
        ".endr",
        "addvl sp, sp, #3",
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "ldr z\\n, [sp, #\\n, mul vl]",
        ".endr",
        "b 1b",
        ".cfi_endproc",
    );
}
