//! Windows of stack addresses on AArch64: a piece of the agent's assembly.
//!
//! A stub reads one word, the one for how far it has lowered the stack pointer, so it sees a window or none whatever a
//! signal handler does meanwhile. The agent has three to write. Until the record of a window is written, all three are
//! a mark of this call, which is no address and lies in no window. Each then becomes the window if it is still the
//! mark. If it is not, a chunk has begun or a signal handler has got a window, which readers take for the present one,
//! and another record is needed.

/// The piece.
macro_rules! windows {
    () => {
        r#"
    // Keeps the window, x13, in a word that still has the mark, x3. Clobbers x10, x15, x17.
    .macro HODO_KEEP_WINDOW offset
    add x17, x6, #\offset
77: ldxr x10, [x17]
    cmp x10, x3
    b.ne 47f
    stxr w15, x13, [x17]
    cbnz w15, 77b
    .endm

    // S is not in the window: gets another one around it, and records it. Where no window has a shadow, the
    // record is only about S,
    // and there is no window. Link: x9. Clobbers x0 to x4, x10 to x15, x17.
    // Where S has come down, or up, from a window, most of the new one is between the two: calls that go to and
    // fro stay in it.
hodo_agent_new_window:
    mov x11, #({WINDOW_SIZE} / 2)
    ldr x17, [x6, #{WINDOW}]
    cmp x17, #0
    b.le 42f
    mov x11, #({WINDOW_SIZE} / 4)
    cmp x5, x17
    b.lo 42f
    mov x11, #({WINDOW_SIZE} / 4 * 3)
42: mov w4, #{ATTEMPTS}
43: orr x3, x5, #0x8000000000000000
    HODO_SET_WINDOW x3
    // What changes the range meanwhile changes its start, too.
    ldr x17, [x6, #{SHADOW_LO}]
    dmb ishld
    ldr x10, [x6, #{SHADOW_LEN}]
    dmb ishld
    ldr x12, [x6, #{SHADOW_LO}]
    cmp x17, x12
    b.ne 45f
    sub x12, x5, x17
    cmp x12, x10
    b.hs 45f
    subs x10, x10, #({WINDOW_SIZE} >> 12), lsl #12
    b.lo 45f
    subs x12, x12, x11
    csel x12, x12, xzr, hs
    cmp x12, x10
    csel x12, x12, x10, lo
    add x13, x17, x12
    and x13, x13, #-{WINDOW_UNIT}
    HODO_CONSTANT w1, {WINDOW_INFO}
    b 46f
45: and x13, x5, #-{WINDOW_UNIT}
    HODO_CONSTANT w1, {STACK_INFO}
    mov x3, #0
46: lsr x0, x13, #{WINDOW_SHIFT}
    lsr x17, x0, #32
    orr w1, w1, w17, lsl #{SP_SHIFT}
    HODO_CALL x10, hodo_agent_place
    bfi x0, x1, #32, #32
    str x0, [x2]
    cbz x3, 48f
    HODO_KEEP_WINDOW {WINDOW}
    sub x13, x13, #16
    HODO_KEEP_WINDOW {LOWERED_WINDOWS}
    sub x13, x13, #16
    HODO_KEEP_WINDOW {LOWERED_WINDOWS} + 8
    br x9
47: subs w4, w4, #1
    b.ne 43b
48: HODO_SET_WINDOW xzr
    br x9
    .purgem HODO_KEEP_WINDOW
"#
    };
}
pub(crate) use windows;
