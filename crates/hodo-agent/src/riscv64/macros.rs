//! Macros of the agent's assembly on RISC-V: how its functions begin and end, and what several of them do.

/// The piece.
macro_rules! macros {
    () => {
        r#"
    # The registers by their numbers, in 256 bytes. Of t0 what the stub has put on the stack. a7 = the first word
    # after the
    # call, a6 = the control block, a5 = S.
    .macro HODO_ENTER
    addi sp, sp, -256
    sd ra, 8(sp)
    sd t1, 48(sp)
    sd t2, 56(sp)
    sd a0, 80(sp)
    sd a1, 88(sp)
    sd a2, 96(sp)
    sd a3, 104(sp)
    sd a4, 112(sp)
    sd a5, 120(sp)
    sd a6, 128(sp)
    sd a7, 136(sp)
    sd t3, 224(sp)
    sd t4, 232(sp)
    sd t5, 240(sp)
    sd t6, 248(sp)
    ld t1, 256(sp)
    sd t1, 40(sp)
    lwu a7, 0(t0)
    andi a6, a7, 31
    slli a6, a6, 3
    add a6, sp, a6
    ld a6, 0(a6)
    srli a5, a7, 15
    andi a5, a5, 31
    slli a5, a5, 4
    add a5, sp, a5
    addi a5, a5, 272
    .endm

    # Takes them back, and goes on after the words, which have this many bytes.
    .macro HODO_LEAVE words
    ld t1, 40(sp)
    sd t1, 256(sp)
    ld t1, 48(sp)
    ld t2, 56(sp)
    ld a0, 80(sp)
    ld a1, 88(sp)
    ld a2, 96(sp)
    ld a3, 104(sp)
    ld a4, 112(sp)
    ld a5, 120(sp)
    ld a6, 128(sp)
    ld a7, 136(sp)
    ld t3, 224(sp)
    ld t4, 232(sp)
    ld t5, 240(sp)
    ld t6, 248(sp)
    addi sp, sp, 256
    jr \words(t0)
    .endm

    # The register whose number is at a bit of a7.
    .macro HODO_GET to, bit
    srli \to, a7, \bit
    andi \to, \to, 31
    slli \to, \to, 3
    add \to, sp, \to
    ld \to, 0(\to)
    .endm

    # Another value for the register of the result. Clobbers t1.
    .macro HODO_SET from
    srli t1, a7, 5
    andi t1, t1, 31
    slli t1, t1, 3
    add t1, sp, t1
    sd \from, 0(t1)
    .endm

    # Another value for all words of the window.
    .macro HODO_SET_WINDOW from
    sd \from, {WINDOW}(a6)
    sd \from, {LOWERED_WINDOWS}(a6)
    sd \from, {LOWERED_WINDOWS} + 8(a6)
    .endm
"#
    };
}
pub(crate) use macros;
