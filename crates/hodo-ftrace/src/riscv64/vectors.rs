//! Keeps floating-point and vector registers around a call.

use core::arch::{global_asm, naked_asm};
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::environment::has_vectors;

// Whether there are vector registers. Hidden, like `hodo_ftrace_state`.
global_asm!(
    ".pushsection .bss.hodo_ftrace_vectors, \"aw\", @nobits",
    ".balign 8",
    ".globl hodo_ftrace_vectors",
    ".hidden hodo_ftrace_vectors",
    ".type hodo_ftrace_vectors, @object",
    ".size hodo_ftrace_vectors, 8",
    "hodo_ftrace_vectors:",
    ".zero 8",
    ".popsection",
);

unsafe extern "C" {
    safe static hodo_ftrace_vectors: AtomicUsize;
}

/// Finds out what the processor and the kernel offer.
pub(crate) fn find_vectors() {
    hodo_ftrace_vectors.store(usize::from(has_vectors()), Ordering::Relaxed);
}

/// Calls a function with two words, and returns what it returns. All floating-point and vector registers are afterwards
/// as before, with their control registers.
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
        ".option push",
        ".option arch, +v",
        ".cfi_startproc",
        "1: auipc t0, %pcrel_hi(hodo_ftrace_vectors)",
        "ld t0, %pcrel_lo(1b)(t0)",
        "bnez t0, 2f",
        "tail {part}",
        "2: addi sp, sp, -48",
        ".cfi_def_cfa_offset 48",
        "sd ra, 40(sp)",
        ".cfi_offset ra, -8",
        "sd s0, 32(sp)",
        ".cfi_offset s0, -16",
        "addi s0, sp, 48",
        ".cfi_def_cfa s0, 0",
        "csrr t0, vstart",
        "sd t0, 0(sp)",
        "csrr t0, vcsr",
        "sd t0, 8(sp)",
        "csrr t0, vl",
        "sd t0, 16(sp)",
        "csrr t0, vtype",
        "sd t0, 24(sp)",
        // A whole-register store begins at element vstart.
        "csrwi vstart, 0",
        "csrr t0, vlenb",
        "slli t1, t0, 5",
        "slli t0, t0, 3",
        "sub sp, sp, t1",
        "mv t1, sp",
        "vs8r.v v0, (t1)",
        "add t1, t1, t0",
        "vs8r.v v8, (t1)",
        "add t1, t1, t0",
        "vs8r.v v16, (t1)",
        "add t1, t1, t0",
        "vs8r.v v24, (t1)",
        "call {part}",
        "csrwi vstart, 0",
        "csrr t0, vlenb",
        "slli t0, t0, 3",
        "mv t1, sp",
        "vl8re8.v v0, (t1)",
        "add t1, t1, t0",
        "vl8re8.v v8, (t1)",
        "add t1, t1, t0",
        "vl8re8.v v16, (t1)",
        "add t1, t1, t0",
        "vl8re8.v v24, (t1)",
        "addi sp, s0, -48",
        "ld t0, 16(sp)",
        "ld t1, 24(sp)",
        "vsetvl zero, t0, t1",
        "ld t0, 8(sp)",
        "csrw vcsr, t0",
        "ld t0, 0(sp)",
        "csrw vstart, t0",
        "ld ra, 40(sp)",
        ".cfi_restore ra",
        "ld s0, 32(sp)",
        ".cfi_def_cfa sp, 48",
        ".cfi_restore s0",
        "addi sp, sp, 48",
        ".cfi_def_cfa_offset 0",
        "ret",
        ".cfi_endproc",
        ".option pop",
        part = sym call_with_part,
    );
}

/// [`call_with_vectors`] for a function that changes only floating-point registers and `fcsr`. (Functions preserve
/// `fs0` to `fs11`.)
///
/// # Safety
/// `function` takes no more than two words, and may be called with these.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_with_part(
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
