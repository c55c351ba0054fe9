//! Keeps floating-point and vector registers around a call.

use core::arch::naked_asm;

/// Calls a function with two words, and returns what it returns. `q0` to `q31`, `fpcr` and `fpsr` are afterwards as
/// before. (Functions preserve only the lower halves of `q8` to `q15`.)
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
        ".cfi_startproc",
        "stp x29, x30, [sp, #-32]!",
        ".cfi_def_cfa_offset 32",
        ".cfi_offset x29, -32",
        ".cfi_offset x30, -24",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "sub sp, sp, #512",
        "mrs x9, fpcr",
        "mrs x10, fpsr",
        "stp x9, x10, [x29, #16]",
        "stp q0, q1, [sp, #0]",
        "stp q2, q3, [sp, #32]",
        "stp q4, q5, [sp, #64]",
        "stp q6, q7, [sp, #96]",
        "stp q8, q9, [sp, #128]",
        "stp q10, q11, [sp, #160]",
        "stp q12, q13, [sp, #192]",
        "stp q14, q15, [sp, #224]",
        "stp q16, q17, [sp, #256]",
        "stp q18, q19, [sp, #288]",
        "stp q20, q21, [sp, #320]",
        "stp q22, q23, [sp, #352]",
        "stp q24, q25, [sp, #384]",
        "stp q26, q27, [sp, #416]",
        "stp q28, q29, [sp, #448]",
        "stp q30, q31, [sp, #480]",
        "mov x9, x0",
        "mov x0, x1",
        "mov x1, x2",
        "blr x9",
        "ldp q0, q1, [sp, #0]",
        "ldp q2, q3, [sp, #32]",
        "ldp q4, q5, [sp, #64]",
        "ldp q6, q7, [sp, #96]",
        "ldp q8, q9, [sp, #128]",
        "ldp q10, q11, [sp, #160]",
        "ldp q12, q13, [sp, #192]",
        "ldp q14, q15, [sp, #224]",
        "ldp q16, q17, [sp, #256]",
        "ldp q18, q19, [sp, #288]",
        "ldp q20, q21, [sp, #320]",
        "ldp q22, q23, [sp, #352]",
        "ldp q24, q25, [sp, #384]",
        "ldp q26, q27, [sp, #416]",
        "ldp q28, q29, [sp, #448]",
        "ldp q30, q31, [sp, #480]",
        "ldp x9, x10, [x29, #16]",
        "msr fpcr, x9",
        "msr fpsr, x10",
        "mov sp, x29",
        ".cfi_def_cfa_register sp",
        "ldp x29, x30, [sp], #32",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        ".cfi_endproc",
    );
}
