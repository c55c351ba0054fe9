//! System calls of the agent on AArch64: a piece of its assembly, which runs with its frame on the stack.
//!
//! Linux keeps the lower 16 bytes of each Z register at a system call, which are the V registers, and forgets the rest,
//! all predicates and FFR. A function may be entered with some that are in use: as arguments, or because its caller
//! knows that it leaves them alone. So they are put on the stack meanwhile, where the control block says that the
//! processor has such registers. On any other none of these instructions is executed.
//!
//! In streaming mode, the registers have another length, there is no FFR, and a system call ends the mode, which also
//! resets the control and status of floating point. Going back to it would mean to restore all that, of which a part
//! (FPMR) may not even be named on processors without it. So no system call is made in this mode, which is rare: calls
//! on stacks without a shadow have no exit there. The control block says whether the processor has it, since the
//! register that says whether it is on exists only there.

/// The piece.
macro_rules! system_calls {
    () => {
        r#"
    // Loads or stores eight registers (`str z`, `ldr p`) from this one on, at x11 and above.
    .macro HODO_EIGHT op, file, first, a, b, c, d, e, f, g, h
    \op \file\a, [x11, #(\first), mul vl]
    \op \file\b, [x11, #(\first + 1), mul vl]
    \op \file\c, [x11, #(\first + 2), mul vl]
    \op \file\d, [x11, #(\first + 3), mul vl]
    \op \file\e, [x11, #(\first + 4), mul vl]
    \op \file\f, [x11, #(\first + 5), mul vl]
    \op \file\g, [x11, #(\first + 6), mul vl]
    \op \file\h, [x11, #(\first + 7), mul vl]
    .endm

    // x17 = 0: system calls may be made. Link: x9. Clobbers x12.
hodo_agent_may_call:
    ldr x12, [x6, #{FLAGS}]
    and x17, x12, #{NO_CALLS}
    cbnz x17, 31f
    and x17, x12, #{STREAMS}
    cbz x17, 31f
    mrs x17, S3_3_C4_C2_2         // SVCR
    and x17, x17, #1
31: br x9

    // A system call. Link: x9. Clobbers x0, which has the result, and x17.
hodo_agent_call:
    ldr x17, [x6, #{FLAGS}]
    and x17, x17, #{VECTORS}
    cbnz x17, 32f
    svc #0
    br x9
    // Where the frame has no registers, there are the two that this takes. Below it come the vector registers,
    // then the predicates,
    // then FFR: 35 times as many bytes as a vector register has.
32: stp x10, x11, [sp, #176]
    .arch_extension sve
    rdvl x10, #7
    add x10, x10, x10, lsl #2
    // While the stack pointer is another one, frame tables find the frame by x17.
    mov x17, sp
    sub sp, sp, x10
    // From above, a page at most at a time: after the end of a stack, what marks it is met first.
    mov x11, x17
    addvl x11, x11, #-8
    HODO_EIGHT str, z, 0, 24, 25, 26, 27, 28, 29, 30, 31
    addvl x11, x11, #-8
    HODO_EIGHT str, z, 0, 16, 17, 18, 19, 20, 21, 22, 23
    addvl x11, x11, #-8
    HODO_EIGHT str, z, 0, 8, 9, 10, 11, 12, 13, 14, 15
    addvl x11, x11, #-8
    HODO_EIGHT str, z, 0, 0, 1, 2, 3, 4, 5, 6, 7
    addvl x11, x11, #-2
    HODO_EIGHT str, p, 0, 0, 1, 2, 3, 4, 5, 6, 7
    HODO_EIGHT str, p, 8, 8, 9, 10, 11, 12, 13, 14, 15
    addvl x11, x11, #-1
    rdffr p0.b
    str p0, [x11]
    svc #0
    ldr p0, [x11]
    wrffr p0.b
    addvl x11, x11, #1
    HODO_EIGHT ldr, p, 0, 0, 1, 2, 3, 4, 5, 6, 7
    HODO_EIGHT ldr, p, 8, 8, 9, 10, 11, 12, 13, 14, 15
    addvl x11, x11, #2
    HODO_EIGHT ldr, z, 0, 0, 1, 2, 3, 4, 5, 6, 7
    HODO_EIGHT ldr, z, 8, 8, 9, 10, 11, 12, 13, 14, 15
    HODO_EIGHT ldr, z, 16, 16, 17, 18, 19, 20, 21, 22, 23
    HODO_EIGHT ldr, z, 24, 24, 25, 26, 27, 28, 29, 30, 31
    .arch_extension nosve
    mov sp, x17
    ldp x10, x11, [sp, #176]
    br x9
"#
    };
}
pub(crate) use system_calls;
