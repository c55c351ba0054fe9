//! Keeps floating-point registers around a call.

use core::arch::naked_asm;

/// There is nothing to find out.
pub(crate) fn find_vectors() {}

/// Calls a function with two words, and returns what it returns. All floating-point registers are afterwards as before,
/// with `fcsr`. (Functions preserve `fs0` to `fs11`.)
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
        ".option push",
        ".option arch, +d",
        ".cfi_startproc",
        "addi sp, sp, -176",
        ".cfi_def_cfa_offset 176",
        "sd ra, 168(sp)",
        ".cfi_offset ra, -8",
        "fsd fa0, 0(sp)",
        "fsd fa1, 8(sp)",
        "fsd fa2, 16(sp)",
        "fsd fa3, 24(sp)",
        "fsd fa4, 32(sp)",
        "fsd fa5, 40(sp)",
        "fsd fa6, 48(sp)",
        "fsd fa7, 56(sp)",
        "fsd ft0, 64(sp)",
        "fsd ft1, 72(sp)",
        "fsd ft2, 80(sp)",
        "fsd ft3, 88(sp)",
        "fsd ft4, 96(sp)",
        "fsd ft5, 104(sp)",
        "fsd ft6, 112(sp)",
        "fsd ft7, 120(sp)",
        "fsd ft8, 128(sp)",
        "fsd ft9, 136(sp)",
        "fsd ft10, 144(sp)",
        "fsd ft11, 152(sp)",
        "frcsr t1",
        "sd t1, 160(sp)",
        "mv t1, a0",
        "mv a0, a1",
        "mv a1, a2",
        "jalr t1",
        "ld t1, 160(sp)",
        "fscsr t1",
        "fld fa0, 0(sp)",
        "fld fa1, 8(sp)",
        "fld fa2, 16(sp)",
        "fld fa3, 24(sp)",
        "fld fa4, 32(sp)",
        "fld fa5, 40(sp)",
        "fld fa6, 48(sp)",
        "fld fa7, 56(sp)",
        "fld ft0, 64(sp)",
        "fld ft1, 72(sp)",
        "fld ft2, 80(sp)",
        "fld ft3, 88(sp)",
        "fld ft4, 96(sp)",
        "fld ft5, 104(sp)",
        "fld ft6, 112(sp)",
        "fld ft7, 120(sp)",
        "fld ft8, 128(sp)",
        "fld ft9, 136(sp)",
        "fld ft10, 144(sp)",
        "fld ft11, 152(sp)",
        "ld ra, 168(sp)",
        ".cfi_restore ra",
        "addi sp, sp, 176",
        ".cfi_def_cfa_offset 0",
        "ret",
        ".cfi_endproc",
        ".option pop",
    );
}
