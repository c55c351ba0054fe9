//! The code shared by all detours of an island, which calls handlers; and a way to call a handler from elsewhere.
//!
//! A detour lowers the stack pointer by the size of [`Registers`], stores `ra` and `t0` there, loads the address of its
//! site's [`Head`] into `t0`, and calls `enter`. `enter` stores the other registers, so that the stack holds
//! [`Registers`], marks the thread as busy, calls the handlers of the site's list, and restores all registers except
//! `ra` and the stack pointer, which the detour restores.
//!
//! While a thread is busy, it misses all hits, which are counted. A handler that faults is left through `recover`. The
//! list that a thread reads after it was marked is not freed before the thread is done (see `threads.rs`).
//!
//! A program that should continue elsewhere than after the detour needs all its registers. A function that should
//! return at once has its return address in `ra`; in all other cases, a breakpoint's signal sets the registers
//! (`Context::switched`).

use core::arch::{asm, global_asm};
use core::mem::offset_of;

use super::Registers;
use crate::arch::calling::{calling_asm, hodo_engine_guarded};
use crate::environment;
use crate::layout::{KEEP_ALL, KEEP_SOME, Thread};

/// Bytes of [`Registers`].
pub(super) const FRAME: usize = size_of::<Registers>();

calling_asm!(
    r#"
    .pushsection .text.hodo_engine_common,"ax",@progbits
    .option push
    .option norelax
    .option arch, +m, +a, +f, +d, +c
    .macro hodo_engine_take
    ld gp, 24(sp)
    ld tp, 32(sp)
    ld t0, 40(sp)
    ld t1, 48(sp)
    ld t2, 56(sp)
    ld s0, 64(sp)
    ld s1, 72(sp)
    ld a0, 80(sp)
    ld a1, 88(sp)
    ld a2, 96(sp)
    ld a3, 104(sp)
    ld a4, 112(sp)
    ld a5, 120(sp)
    ld a6, 128(sp)
    ld a7, 136(sp)
    ld s2, 144(sp)
    ld s3, 152(sp)
    ld s4, 160(sp)
    ld s5, 168(sp)
    ld s6, 176(sp)
    ld s7, 184(sp)
    ld s8, 192(sp)
    ld s9, 200(sp)
    ld s10, 208(sp)
    ld s11, 216(sp)
    ld t3, 224(sp)
    ld t4, 232(sp)
    ld t5, 240(sp)
    ld t6, 248(sp)
    .endm
    .balign 16
    .hidden hodo_engine_common
    .globl hodo_engine_common
hodo_engine_common:
    sd gp, 24(sp)
    sd tp, 32(sp)
    sd t1, 48(sp)
    sd t2, 56(sp)
    sd s0, 64(sp)
    sd s1, 72(sp)
    sd a0, 80(sp)
    sd a1, 88(sp)
    sd a2, 96(sp)
    sd a3, 104(sp)
    sd a4, 112(sp)
    sd a5, 120(sp)
    sd a6, 128(sp)
    sd a7, 136(sp)
    sd s2, 144(sp)
    sd s3, 152(sp)
    sd s4, 160(sp)
    sd s5, 168(sp)
    sd s6, 176(sp)
    sd s7, 184(sp)
    sd s8, 192(sp)
    sd s9, 200(sp)
    sd s10, 208(sp)
    sd s11, 216(sp)
    sd t3, 224(sp)
    sd t4, 232(sp)
    sd t5, 240(sp)
    sd t6, 248(sp)
    addi t1, sp, {FRAME}
    sd t1, {SP}(sp)
    ld t1, {ADDR}(t0)
    sd t1, {PC}(sp)
    mv s0, sp
    mv s1, t0
    mv s2, ra
    ld t1, 90f
    add t1, t1, tp
    ld s3, 0(t1)
    beqz s3, 60f
20: lw t1, {BUSY}(s3)
    bnez t1, 70f
    li t1, 1
    sw t1, {BUSY}(s3)
    ld t1, {SEQUENCE}(s3)
    addi t1, t1, 1
    sd t1, {SEQUENCE}(s3)
    ld s4, {LIST}(s1)
    lw s5, {KEEP}(s1)
    andi sp, sp, -16
    jal t0, 40f
    // If a handler faults, what is left is found through the stack pointer.
    addi sp, sp, -64
    sd s0, 0(sp)
    sd s1, 8(sp)
    sd s2, 16(sp)
    sd s3, 24(sp)
    sd s5, 40(sp)
    sd s6, 48(sp)
    sd s8, 56(sp)
    lla t1, 50f
    sd t1, {RECOVER_PC}(s3)
    sd sp, {RECOVER_SP}(s3)
31: ld s7, 0(s4)
    addi s4, s4, 8
    beqz s7, 33f
    lw t1, {ENABLED}(s7)
    beqz t1, 31b
    ld t1, {BEFORE}(s7)
    beqz t1, 32f
    sd s4, 32(sp)
    sd s7, {PROBE}(s3)
    mv a0, s0
    ld a1, {DATA}(s7)
    jalr t1
    j 31b
32: li t1, 1
    addi t2, s7, {COUNTS}
    amoadd.d zero, t1, (t2)
    j 31b
33: addi sp, sp, 64
    jal t0, 45f
    sd zero, {RECOVER_PC}(s3)
    // The list's probes must have been used before the thread shows as not busy.
    fence rw, w
    sw zero, {BUSY}(s3)
    addi t3, s0, {FRAME}
    ld t4, {SP}(s0)
    bne t3, t4, hodo_engine_common_switch
    ld t1, {PC}(s0)
    ld t2, {ADDR}(s1)
    bne t1, t2, 80f
35: mv sp, s0
    mv ra, s2
    hodo_engine_take
    ret
    // Saves registers as s5 says: s6 points to the floating-point registers that calls may change, s8 to the vectors.
40: beqz s5, 41f
    addi sp, sp, -176
    mv s6, sp
    frcsr t1
    fsd ft0, 0(sp)
    fsd ft1, 8(sp)
    fsd ft2, 16(sp)
    fsd ft3, 24(sp)
    fsd ft4, 32(sp)
    fsd ft5, 40(sp)
    fsd ft6, 48(sp)
    fsd ft7, 56(sp)
    fsd fa0, 64(sp)
    fsd fa1, 72(sp)
    fsd fa2, 80(sp)
    fsd fa3, 88(sp)
    fsd fa4, 96(sp)
    fsd fa5, 104(sp)
    fsd fa6, 112(sp)
    fsd fa7, 120(sp)
    fsd ft8, 128(sp)
    fsd ft9, 136(sp)
    fsd ft10, 144(sp)
    fsd ft11, 152(sp)
    sd t1, 160(sp)
    li t1, {KEEP_SOME}
    beq s5, t1, 41f
    ld t1, 92f
    beqz t1, 42f
    .option push
    .option arch, +v
    csrr t1, vstart
    csrr t2, vcsr
    csrr t3, vl
    csrr t4, vtype
    csrr t5, vlenb
    // A whole-register store begins at element vstart.
    csrwi vstart, 0
    slli t6, t5, 5
    slli t5, t5, 3
    addi sp, sp, -32
    sd t1, 0(sp)
    sd t2, 8(sp)
    sd t3, 16(sp)
    sd t4, 24(sp)
    mv s8, sp
    sub sp, sp, t6
    mv t6, sp
    vs8r.v v0, (t6)
    add t6, t6, t5
    vs8r.v v8, (t6)
    add t6, t6, t5
    vs8r.v v16, (t6)
    add t6, t6, t5
    vs8r.v v24, (t6)
    .option pop
41: jr t0
42: li s5, {KEEP_SOME}
    jr t0
    // Restores them.
45: beqz s5, 41b
    li t1, {KEEP_SOME}
    beq s5, t1, 46f
    .option push
    .option arch, +v
    csrwi vstart, 0
    csrr t5, vlenb
    slli t6, t5, 5
    slli t5, t5, 3
    sub t6, s8, t6
    vl8re8.v v0, (t6)
    add t6, t6, t5
    vl8re8.v v8, (t6)
    add t6, t6, t5
    vl8re8.v v16, (t6)
    add t6, t6, t5
    vl8re8.v v24, (t6)
    ld t1, 0(s8)
    ld t2, 8(s8)
    ld t3, 16(s8)
    ld t4, 24(s8)
    vsetvl zero, t3, t4
    csrw vcsr, t2
    csrw vstart, t1
    .option pop
46: ld t1, 160(s6)
    fscsr t1
    fld ft0, 0(s6)
    fld ft1, 8(s6)
    fld ft2, 16(s6)
    fld ft3, 24(s6)
    fld ft4, 32(s6)
    fld ft5, 40(s6)
    fld ft6, 48(s6)
    fld ft7, 56(s6)
    fld fa0, 64(s6)
    fld fa1, 72(s6)
    fld fa2, 80(s6)
    fld fa3, 88(s6)
    fld fa4, 96(s6)
    fld fa5, 104(s6)
    fld fa6, 112(s6)
    fld fa7, 120(s6)
    fld ft8, 128(s6)
    fld ft9, 136(s6)
    fld ft10, 144(s6)
    fld ft11, 152(s6)
    jr t0
    // A handler faulted: continue with the next one. The stack pointer is that of the loop.
50: ld s0, 0(sp)
    ld s1, 8(sp)
    ld s2, 16(sp)
    ld s3, 24(sp)
    ld s4, 32(sp)
    ld s5, 40(sp)
    ld s6, 48(sp)
    ld s8, 56(sp)
    j 31b
    // The thread is new: give it an entry in the table.
60: andi sp, sp, -16
    li s5, {KEEP_ALL}
    jal t0, 40b
    ld t1, 91f
    jalr t1
    mv s3, a0
    jal t0, 45b
    mv sp, s0
    bnez s3, 20b
    ld t1, 93f
    li t2, 1
    amoadd.d zero, t2, (t1)
    j 35b
    // A handler is running in this thread.
70: ld s4, {LIST}(s1)
71: ld s7, 0(s4)
    addi s4, s4, 8
    beqz s7, 35b
    lw t1, {ENABLED}(s7)
    beqz t1, 71b
    ld t1, {BEFORE}(s7)
    li t2, 1
    addi t3, s7, {MISSED}
    bnez t1, 72f
    addi t3, s7, {COUNTS}
72: amoadd.d zero, t2, (t3)
    j 71b
    // The handler wants to continue elsewhere: perhaps where `ra` points.
80: ld t2, {RA}(s0)
    bne t1, t2, hodo_engine_common_switch
    mv sp, s0
    hodo_engine_take
    ld ra, {RA}(sp)
    addi sp, sp, {FRAME}
    ret
    .hidden hodo_engine_common_switch
    .globl hodo_engine_common_switch
hodo_engine_common_switch:
    ebreak
    .balign 8
90: .quad 0
91: .quad 0
92: .quad 0
93: .quad 0
    .hidden hodo_engine_common_end
    .globl hodo_engine_common_end
hodo_engine_common_end:
    .purgem hodo_engine_take
    .option pop
    .popsection
    "#,
    PC = const offset_of!(Registers, pc),
    RA = const offset_of!(Registers, ra),
    SP = const offset_of!(Registers, sp),
    FRAME = const FRAME,
    KEEP_SOME = const KEEP_SOME,
    KEEP_ALL = const KEEP_ALL,
);

// Calls a handler. The result is 1 if the handler faulted and was left.
global_asm!(
    r#"
    .pushsection .text.hodo_engine_guarded,"ax",@progbits
    .option push
    .option norelax
    .option arch, +m, +a, +f, +d, +c
    .hidden hodo_engine_guarded
    .globl hodo_engine_guarded
    .type hodo_engine_guarded,@function
hodo_engine_guarded:
    addi sp, sp, -112
    sd ra, 0(sp)
    sd s0, 8(sp)
    sd s1, 16(sp)
    sd s2, 24(sp)
    sd s3, 32(sp)
    sd s4, 40(sp)
    sd s5, 48(sp)
    sd s6, 56(sp)
    sd s7, 64(sp)
    sd s8, 72(sp)
    sd s9, 80(sp)
    sd s10, 88(sp)
    sd s11, 96(sp)
    sd a0, 104(sp)
    lla t0, 2f
    sd t0, {RECOVER_PC}(a0)
    sd sp, {RECOVER_SP}(a0)
    mv t1, a1
    mv a0, a2
    mv a1, a3
    jalr t1
    li a0, 0
3:  ld t0, 104(sp)
    sd zero, {RECOVER_PC}(t0)
    ld ra, 0(sp)
    ld s0, 8(sp)
    ld s1, 16(sp)
    ld s2, 24(sp)
    ld s3, 32(sp)
    ld s4, 40(sp)
    ld s5, 48(sp)
    ld s6, 56(sp)
    ld s7, 64(sp)
    ld s8, 72(sp)
    ld s9, 80(sp)
    ld s10, 88(sp)
    ld s11, 96(sp)
    addi sp, sp, 112
    ret
2:  li a0, 1
    j 3b
    .hidden hodo_engine_guarded_end
    .globl hodo_engine_guarded_end
hodo_engine_guarded_end:
    .size hodo_engine_guarded, . - hodo_engine_guarded
    .option pop
    .popsection
    .pushsection .tbss.hodo_engine,"awT",@nobits
    .balign 8
    .hidden hodo_engine_thread
    .globl hodo_engine_thread
    .type hodo_engine_thread,@object
    .size hodo_engine_thread, 8
hodo_engine_thread:
    .zero 8
    .popsection
    "#,
    RECOVER_PC = const offset_of!(Thread, recover_pc),
    RECOVER_SP = const offset_of!(Thread, recover_sp),
);

unsafe extern "C" {
    static hodo_engine_common: u8;
    static hodo_engine_common_switch: u8;
    static hodo_engine_common_end: u8;
    static hodo_engine_guarded_end: u8;
}

/// The offset from `tp` to the running thread's pointer to its table entry.
fn tls_offset() -> u64 {
    let offset: u64;
    // SAFETY: the linker has put the number there.
    unsafe {
        asm!(
            "la.tls.ie {}, hodo_engine_thread",
            out(reg) offset,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    offset
}

/// The running thread's pointer to its table entry.
pub(crate) fn thread_pointer() -> *const Thread {
    let pointer;
    // SAFETY: each thread has eight bytes of its own memory there.
    unsafe {
        asm!(
            "add {pointer}, tp, {offset}",
            "ld {pointer}, 0({pointer})",
            pointer = out(reg) pointer,
            offset = in(reg) tls_offset(),
            options(readonly, nostack, preserves_flags),
        );
    }
    pointer
}

/// Sets that pointer.
///
/// # Safety
/// The entry must be this thread's own, and stay.
pub(crate) unsafe fn set_thread_pointer(thread: *const Thread) {
    // SAFETY: each thread has eight bytes of its own memory there.
    unsafe {
        asm!(
            "add {place}, tp, {offset}",
            "sd {thread}, 0({place})",
            place = out(reg) _,
            offset = in(reg) tls_offset(),
            thread = in(reg) thread,
            options(nostack, preserves_flags),
        );
    }
}

/// Where in the shared code the breakpoint is through which programs continue elsewhere.
pub(super) fn switch_offset() -> u64 {
    &raw const hodo_engine_common_switch as u64 - &raw const hodo_engine_common as u64
}

/// The shared code with its data, to be copied to an island's start.
pub(crate) fn code(
    claim: extern "C" fn() -> *const Thread,
    unknown: *const u64,
) -> Option<alloc::vec::Vec<u8>> {
    // SAFETY: the two symbols are the start and the end of one piece of read-only code.
    let code = unsafe {
        let start = &raw const hodo_engine_common;
        let end = &raw const hodo_engine_common_end;
        core::slice::from_raw_parts(start, end as usize - start as usize)
    };
    let mut code = code.to_vec();
    let data = code.len() - 32;
    let values = [
        tls_offset(),
        claim as *const () as u64,
        u64::from(environment::current().has_vectors()),
        unknown as u64,
    ];
    for (place, value) in code[data..].chunks_exact_mut(8).zip(values) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    const { assert!(KEEP_ALL > KEEP_SOME && FRAME == 256) };
    Some(code)
}

/// Returns whether an address is in the engine's assembly.
pub(crate) fn is_own(addr: u64) -> bool {
    let common = &raw const hodo_engine_common as u64..&raw const hodo_engine_common_end as u64;
    let guarded =
        hodo_engine_guarded as *const () as u64..&raw const hodo_engine_guarded_end as u64;
    common.contains(&addr) || guarded.contains(&addr)
}
