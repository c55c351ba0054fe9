//! The code shared by all detours of an island, which calls handlers; and a way to call a handler from elsewhere.
//!
//! A detour lowers the stack pointer by the size of [`Registers`], stores `x16`, `x17` and `x30` there, loads the
//! address of its site's [`Head`](crate::layout::Head) into `x16`, and calls the shared code. That stores the other
//! registers, so that the stack holds [`Registers`], marks the thread as busy, calls the handlers of the site's list,
//! and restores all registers except `x30` and the stack pointer, which the detour restores.
//!
//! While a thread is busy, it misses all hits, which are counted. A handler that faults is left through `recover`. The
//! list that a thread reads after it was marked is not freed before the thread is done (see `threads.rs`).
//!
//! A program that should continue elsewhere than after the detour needs all its registers. A function that should
//! return at once has its return address in `x30`; in all other cases, a breakpoint's signal sets the registers
//! (`Context::switched`).

use core::arch::{asm, global_asm};
use core::mem::offset_of;

use super::Registers;
use crate::arch::calling::{calling_asm, hodo_engine_guarded};
use crate::environment;
use crate::layout::{KEEP_ALL, KEEP_SOME, Thread};
use hodo_isa::aarch64::asm::operand::mem;
use hodo_isa::aarch64::asm::ops::Insns as _;
use hodo_isa::aarch64::asm::{Code, Reach};
use hodo_isa::aarch64::encode::literal;
use hodo_isa::aarch64::regs::{LINK, SP, ZERO};

/// Bytes of [`Registers`].
pub(super) const FRAME: i64 = size_of::<Registers>() as i64;
/// Registers with which code before the moved instructions works; it saves them.
pub(super) const SCRATCH: [u8; 3] = [16, 17, 15];

/// Where a register is in [`Registers`].
const fn place(register: u8) -> i64 {
    register as i64 * 8
}

/// Loads 8 bytes at an address within 1 MiB.
pub(super) fn load(code: &mut Code<'_>, register: u8, address: u64) {
    let distance = address.wrapping_sub(code.here()).cast_signed();
    code.word(literal(register, distance));
}

/// Begins a call of the shared code: [`Registers`] are on the stack, with the two that [`enter`] uses.
pub(super) fn begin(code: &mut Code<'_>) {
    code.addi(SP, SP, -FRAME);
    code.stp(16, 17, mem(SP, place(16)));
}

/// Calls the shared code for the head to which the word at an address points. The link register's value is the
/// program's, and becomes what handlers make of it.
pub(super) fn enter(code: &mut Code<'_>, head: u64, common: u64) -> Option<()> {
    code.str(LINK, mem(SP, place(LINK)));
    load(code, 16, head);
    code.jump_and_link(common, Reach::Jump, ZERO, LINK).ok()?;
    // `Context::switched` goes on after these two.
    code.ldr(LINK, mem(SP, place(LINK)));
    code.addi(SP, SP, FRAME);
    Some(())
}

calling_asm!(
    r#"
    .pushsection .text.hodo_engine_common,"ax",@progbits
    // Handlers may use these registers where the engine itself is compiled without them.
    .arch_extension fp
    .arch_extension simd
    .macro hodo_engine_take
    ldr x9, [sp, #{STATE}]
    msr nzcv, x9
    ldp x0, x1, [sp, #0]
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x16, x17, [sp, #128]
    ldp x18, x19, [sp, #144]
    ldp x20, x21, [sp, #160]
    ldp x22, x23, [sp, #176]
    ldp x24, x25, [sp, #192]
    ldp x26, x27, [sp, #208]
    ldp x28, x29, [sp, #224]
    .endm
    // Adds 1 to the word at x9.
    .macro hodo_engine_count
99: ldxr x10, [x9]
    add x10, x10, #1
    stxr w11, x10, [x9]
    cbnz w11, 99b
    .endm
    .balign 16
    .hidden hodo_engine_common
    .globl hodo_engine_common
hodo_engine_common:
    stp x0, x1, [sp, #0]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
    mrs x9, nzcv
    str x9, [sp, #{STATE}]
    add x9, sp, #{FRAME}
    ldr x10, [x16, #{ADDR}]
    stp x9, x10, [sp, #{SP}]
    mov x19, sp
    mov x20, x16
    mov x21, x30
    ldr x9, 90f
    mrs x10, tpidr_el0
    ldr x22, [x10, x9]
    cbz x22, 60f
20: ldr w9, [x22, #{BUSY}]
    cbnz w9, 70f
    mov w9, #1
    str w9, [x22, #{BUSY}]
    ldr x9, [x22, #{SEQUENCE}]
    add x9, x9, #1
    str x9, [x22, #{SEQUENCE}]
    ldr x23, [x20, #{LIST}]
    ldr w24, [x20, #{KEEP}]
    bl 40f
    // If a handler faults, what is left is found through the stack pointer.
    sub sp, sp, #64
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x24, x25, [sp, #40]
    adr x9, 50f
    str x9, [x22, #{RECOVER_PC}]
    mov x9, sp
    str x9, [x22, #{RECOVER_SP}]
31: ldr x27, [x23], #8
    cbz x27, 33f
    ldr w9, [x27, #{ENABLED}]
    cbz w9, 31b
    ldr x9, [x27, #{BEFORE}]
    cbz x9, 32f
    str x23, [sp, #32]
    str x27, [x22, #{PROBE}]
    mov x0, x19
    ldr x1, [x27, #{DATA}]
    blr x9
    b 31b
32: add x9, x27, #{COUNTS}
    hodo_engine_count
    b 31b
33: add sp, sp, #64
    bl 45f
    str xzr, [x22, #{RECOVER_PC}]
    // The list's probes must have been used before the thread shows as not busy.
    add x9, x22, #{BUSY}
    stlr wzr, [x9]
    add x9, x19, #{FRAME}
    ldp x10, x11, [x19, #{SP}]
    cmp x9, x10
    b.ne hodo_engine_common_switch
    ldr x12, [x20, #{ADDR}]
    cmp x11, x12
    b.ne 80f
35: mov sp, x19
    mov x30, x21
    hodo_engine_take
    ret
    // Saves registers as w24 says; x25 points to them. Handlers may use all vector registers.
40: cbz w24, 41f
    mrs x9, fpcr
    mrs x10, fpsr
    cmp w24, #{KEEP_SOME}
    b.eq 42f
    ldr x11, 92f
    mov w24, #{KEEP_SOME}
    cbz x11, 42f
    mov w24, #{KEEP_ALL}
    .arch_extension sve
    addvl sp, sp, #-32
    addvl sp, sp, #-3
    str z0, [sp, #0, mul vl]
    str z1, [sp, #1, mul vl]
    str z2, [sp, #2, mul vl]
    str z3, [sp, #3, mul vl]
    str z4, [sp, #4, mul vl]
    str z5, [sp, #5, mul vl]
    str z6, [sp, #6, mul vl]
    str z7, [sp, #7, mul vl]
    str z8, [sp, #8, mul vl]
    str z9, [sp, #9, mul vl]
    str z10, [sp, #10, mul vl]
    str z11, [sp, #11, mul vl]
    str z12, [sp, #12, mul vl]
    str z13, [sp, #13, mul vl]
    str z14, [sp, #14, mul vl]
    str z15, [sp, #15, mul vl]
    str z16, [sp, #16, mul vl]
    str z17, [sp, #17, mul vl]
    str z18, [sp, #18, mul vl]
    str z19, [sp, #19, mul vl]
    str z20, [sp, #20, mul vl]
    str z21, [sp, #21, mul vl]
    str z22, [sp, #22, mul vl]
    str z23, [sp, #23, mul vl]
    str z24, [sp, #24, mul vl]
    str z25, [sp, #25, mul vl]
    str z26, [sp, #26, mul vl]
    str z27, [sp, #27, mul vl]
    str z28, [sp, #28, mul vl]
    str z29, [sp, #29, mul vl]
    str z30, [sp, #30, mul vl]
    str z31, [sp, #31, mul vl]
    addvl x12, sp, #31
    addvl x12, x12, #1
    str p0, [x12, #0, mul vl]
    str p1, [x12, #1, mul vl]
    str p2, [x12, #2, mul vl]
    str p3, [x12, #3, mul vl]
    str p4, [x12, #4, mul vl]
    str p5, [x12, #5, mul vl]
    str p6, [x12, #6, mul vl]
    str p7, [x12, #7, mul vl]
    str p8, [x12, #8, mul vl]
    str p9, [x12, #9, mul vl]
    str p10, [x12, #10, mul vl]
    str p11, [x12, #11, mul vl]
    str p12, [x12, #12, mul vl]
    str p13, [x12, #13, mul vl]
    str p14, [x12, #14, mul vl]
    str p15, [x12, #15, mul vl]
    rdffr p0.b
    str p0, [x12, #16, mul vl]
    ldr p0, [x12]
    sub sp, sp, #16
    b 43f
42: sub sp, sp, #528
    stp q0, q1, [sp, #16]
    stp q2, q3, [sp, #48]
    stp q4, q5, [sp, #80]
    stp q6, q7, [sp, #112]
    stp q8, q9, [sp, #144]
    stp q10, q11, [sp, #176]
    stp q12, q13, [sp, #208]
    stp q14, q15, [sp, #240]
    stp q16, q17, [sp, #272]
    stp q18, q19, [sp, #304]
    stp q20, q21, [sp, #336]
    stp q22, q23, [sp, #368]
    stp q24, q25, [sp, #400]
    stp q26, q27, [sp, #432]
    stp q28, q29, [sp, #464]
    stp q30, q31, [sp, #496]
43: stp x9, x10, [sp]
    mov x25, sp
41: ret
    // Restores them.
45: cbz w24, 41b
    ldp x9, x10, [x25]
    msr fpcr, x9
    msr fpsr, x10
    cmp w24, #{KEEP_SOME}
    b.eq 46f
    add x11, x25, #16
    ldr z0, [x11, #0, mul vl]
    ldr z1, [x11, #1, mul vl]
    ldr z2, [x11, #2, mul vl]
    ldr z3, [x11, #3, mul vl]
    ldr z4, [x11, #4, mul vl]
    ldr z5, [x11, #5, mul vl]
    ldr z6, [x11, #6, mul vl]
    ldr z7, [x11, #7, mul vl]
    ldr z8, [x11, #8, mul vl]
    ldr z9, [x11, #9, mul vl]
    ldr z10, [x11, #10, mul vl]
    ldr z11, [x11, #11, mul vl]
    ldr z12, [x11, #12, mul vl]
    ldr z13, [x11, #13, mul vl]
    ldr z14, [x11, #14, mul vl]
    ldr z15, [x11, #15, mul vl]
    ldr z16, [x11, #16, mul vl]
    ldr z17, [x11, #17, mul vl]
    ldr z18, [x11, #18, mul vl]
    ldr z19, [x11, #19, mul vl]
    ldr z20, [x11, #20, mul vl]
    ldr z21, [x11, #21, mul vl]
    ldr z22, [x11, #22, mul vl]
    ldr z23, [x11, #23, mul vl]
    ldr z24, [x11, #24, mul vl]
    ldr z25, [x11, #25, mul vl]
    ldr z26, [x11, #26, mul vl]
    ldr z27, [x11, #27, mul vl]
    ldr z28, [x11, #28, mul vl]
    ldr z29, [x11, #29, mul vl]
    ldr z30, [x11, #30, mul vl]
    ldr z31, [x11, #31, mul vl]
    addvl x12, x11, #31
    addvl x12, x12, #1
    ldr p0, [x12, #16, mul vl]
    wrffr p0.b
    ldr p0, [x12, #0, mul vl]
    ldr p1, [x12, #1, mul vl]
    ldr p2, [x12, #2, mul vl]
    ldr p3, [x12, #3, mul vl]
    ldr p4, [x12, #4, mul vl]
    ldr p5, [x12, #5, mul vl]
    ldr p6, [x12, #6, mul vl]
    ldr p7, [x12, #7, mul vl]
    ldr p8, [x12, #8, mul vl]
    ldr p9, [x12, #9, mul vl]
    ldr p10, [x12, #10, mul vl]
    ldr p11, [x12, #11, mul vl]
    ldr p12, [x12, #12, mul vl]
    ldr p13, [x12, #13, mul vl]
    ldr p14, [x12, #14, mul vl]
    ldr p15, [x12, #15, mul vl]
    .arch_extension nosve
    ret
46:
    ldp q0, q1, [x25, #16]
    ldp q2, q3, [x25, #48]
    ldp q4, q5, [x25, #80]
    ldp q6, q7, [x25, #112]
    ldp q8, q9, [x25, #144]
    ldp q10, q11, [x25, #176]
    ldp q12, q13, [x25, #208]
    ldp q14, q15, [x25, #240]
    ldp q16, q17, [x25, #272]
    ldp q18, q19, [x25, #304]
    ldp q20, q21, [x25, #336]
    ldp q22, q23, [x25, #368]
    ldp q24, q25, [x25, #400]
    ldp q26, q27, [x25, #432]
    ldp q28, q29, [x25, #464]
    ldp q30, q31, [x25, #496]
    ret
    // A handler faulted: continue with the next one. The stack pointer is that of the loop.
50: ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldr x23, [sp, #32]
    ldp x24, x25, [sp, #40]
    b 31b
    // The thread is new: give it an entry in the table.
60: mov w24, #{KEEP_ALL}
    bl 40b
    ldr x9, 91f
    blr x9
    mov x22, x0
    bl 45b
    mov sp, x19
    cbnz x22, 20b
    ldr x9, 93f
    hodo_engine_count
    b 35b
    // A handler is running in this thread.
70: ldr x23, [x20, #{LIST}]
71: ldr x27, [x23], #8
    cbz x27, 35b
    ldr w9, [x27, #{ENABLED}]
    cbz w9, 71b
    ldr x10, [x27, #{BEFORE}]
    add x9, x27, #{MISSED}
    cbnz x10, 72f
    add x9, x27, #{COUNTS}
72: hodo_engine_count
    b 71b
    // The handler wants to continue elsewhere: perhaps where x30 points.
80: ldr x9, [x19, #{LINK}]
    cmp x9, x11
    b.ne hodo_engine_common_switch
    mov sp, x19
    hodo_engine_take
    ldr x30, [sp, #{LINK}]
    add sp, sp, #{FRAME}
    ret
    .hidden hodo_engine_common_switch
    .globl hodo_engine_common_switch
hodo_engine_common_switch:
    brk #0
    .balign 8
90: .quad 0
91: .quad 0
92: .quad 0
93: .quad 0
    .hidden hodo_engine_common_end
    .globl hodo_engine_common_end
hodo_engine_common_end:
    .purgem hodo_engine_take
    .purgem hodo_engine_count
    .popsection
    "#,
    LINK = const place(LINK),
    SP = const offset_of!(Registers, sp),
    STATE = const offset_of!(Registers, pstate),
    FRAME = const FRAME,
    KEEP_SOME = const KEEP_SOME,
    KEEP_ALL = const KEEP_ALL,
);

// Calls a handler. The result is 1 if the handler faulted and was left.
global_asm!(
    r#"
    .pushsection .text.hodo_engine_guarded,"ax",@progbits
    .hidden hodo_engine_guarded
    .globl hodo_engine_guarded
    .type hodo_engine_guarded,@function
hodo_engine_guarded:
    stp x29, x30, [sp, #-176]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    str x0, [sp, #160]
    adr x9, 2f
    str x9, [x0, #{RECOVER_PC}]
    mov x9, sp
    str x9, [x0, #{RECOVER_SP}]
    mov x9, x1
    mov x0, x2
    mov x1, x3
    blr x9
    mov w0, #0
3:  ldr x9, [sp, #160]
    str xzr, [x9, #{RECOVER_PC}]
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x29, x30, [sp], #176
    ret
2:  mov w0, #1
    b 3b
    .hidden hodo_engine_guarded_end
    .globl hodo_engine_guarded_end
hodo_engine_guarded_end:
    .size hodo_engine_guarded, . - hodo_engine_guarded
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

/// The offset from the thread pointer to the running thread's pointer to its table entry.
fn tls_offset() -> u64 {
    let offset: u64;
    // SAFETY: the linker has put the number there.
    unsafe {
        asm!(
            "adrp {0}, :gottprel:hodo_engine_thread",
            "ldr {0}, [{0}, :gottprel_lo12:hodo_engine_thread]",
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
            "mrs {pointer}, tpidr_el0",
            "ldr {pointer}, [{pointer}, {offset}]",
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
            "mrs {place}, tpidr_el0",
            "str {thread}, [{place}, {offset}]",
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
    const { assert!(KEEP_ALL > KEEP_SOME && FRAME == 272) };
    Some(code)
}

/// Returns whether an address is in the engine's assembly.
pub(crate) fn is_own(addr: u64) -> bool {
    let common = &raw const hodo_engine_common as u64..&raw const hodo_engine_common_end as u64;
    let guarded =
        hodo_engine_guarded as *const () as u64..&raw const hodo_engine_guarded_end as u64;
    common.contains(&addr) || guarded.contains(&addr)
}
