//! Windows of stack addresses on RISC-V: a piece of the agent's assembly.
//!
//! A stub reads one word, the one for how far it has lowered the stack pointer, so it sees a window or none whatever a
//! signal handler does meanwhile. The agent has three to write. Until the record of a window is written, all three are
//! a mark of this call, which is no address and lies in no window. Each then becomes the window if it is still the
//! mark. If it is not, a chunk has begun or a signal handler has got a window, which readers take for the present one,
//! and another record is needed. A handler's window in a higher place can then be overwritten by ours, for the few
//! instructions until all three words are a mark again.

/// The piece.
macro_rules! windows {
    () => {
        r#"
    # Keeps the window, t6, in a word that has the mark, a3, which is above all windows. A word without a window
    # stays so; that of a
    # handler's window may change, and has none soon after. No `lr` and `sc`: hodo takes threads out of the agent
    # by single steps, by which
    # these never succeed. Clobbers t1, t3.
    .macro HODO_KEEP_WINDOW offset
    addi t1, a6, \offset
    amominu.d t3, t6, (t1)
    bne t3, a3, 47f
    .endm

    # S is not in the window: gets another one around it, and records it. Where no window has a shadow, the record
    # is only about S, and
    # there is no window. Link: t2. Clobbers a0 to a4, t1, t3 to t6.
    # Where S has come down, or up, from a window, most of the new one is between the two: calls that go to and
    # fro stay in it.
hodo_agent_new_window:
    li t4, {WINDOW_SIZE} / 2
    ld t1, {WINDOW}(a6)
    blez t1, 42f
    li t4, {WINDOW_SIZE} / 4
    bltu a5, t1, 42f
    li t4, {WINDOW_SIZE} / 4 * 3
42: li a4, {ATTEMPTS}
43: li a3, 1
    slli a3, a3, 63
    or a3, a3, a5
    HODO_SET_WINDOW a3
    # What changes the range meanwhile changes its start, too.
    ld t1, {SHADOW_LO}(a6)
    fence r, r
    ld t3, {SHADOW_LEN}(a6)
    fence r, r
    ld t5, {SHADOW_LO}(a6)
    bne t1, t5, 45f
    sub t5, a5, t1
    bgeu t5, t3, 45f
    li t6, {WINDOW_SIZE}
    bltu t3, t6, 45f
    sub t3, t3, t6
    mv t6, t5
    li t5, 0
    bltu t6, t4, 44f
    sub t5, t6, t4
    bgeu t3, t5, 44f
    mv t5, t3
44: add t6, t1, t5
    andi t6, t6, -{WINDOW_UNIT}
    li a1, {WINDOW_INFO}
    j 46f
45: andi t6, a5, -{WINDOW_UNIT}
    li a1, {STACK_INFO}
    li a3, 0
46: srli a0, t6, {WINDOW_SHIFT}
    srli t1, a0, 32
    slli t1, t1, {SP_SHIFT}
    or a1, a1, t1
    jal t3, hodo_agent_place
    sw a0, 0(a2)
    sw a1, 4(a2)
    beqz a3, 48f
    HODO_KEEP_WINDOW {WINDOW}
    addi t6, t6, -16
    HODO_KEEP_WINDOW {LOWERED_WINDOWS}
    addi t6, t6, -16
    HODO_KEEP_WINDOW {LOWERED_WINDOWS} + 8
    jr t2
47: addi a4, a4, -1
    bnez a4, 43b
48: HODO_SET_WINDOW zero
    jr t2
    .purgem HODO_KEEP_WINDOW
"#
    };
}
pub(crate) use windows;
