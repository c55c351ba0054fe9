//! Macros of the agent's assembly on AArch64: how its functions begin and end, and what several of them do.
//!
//! The flags are kept, too, so compare instructions may be used.

/// The piece.
macro_rules! macros {
    () => {
        r#"
    // The registers by their numbers, in 256 bytes: those that stubs work with, which are x0 to x17 and x30. Of
    // x16 what
    // the stub has put on the stack. The flags are above them. Words for other uses are in between, from 144 on.
    // x7 = the first word after the call, x6 = the control block, x5 = S.
    .macro HODO_ENTER
    sub sp, sp, #256
    stp x0, x1, [sp]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    mrs x15, nzcv
    ldr x14, [sp, #256]
    stp x14, x17, [sp, #128]
    stp x30, x15, [sp, #240]
    ldr w7, [x16]
    and x6, x7, #31
    ldr x6, [sp, x6, lsl #3]
    ubfx x5, x7, #15, #5
    add x5, sp, x5, uxtx #4
    add x5, x5, #272
    .endm

    // Takes them back, and goes on after the words, which have this many bytes. Whatever predicts where
    // functions return
    // to must not take this for such a return.
    .macro HODO_LEAVE words
    ldr x15, [sp, #248]
    msr nzcv, x15
    ldp x14, x17, [sp, #128]
    str x14, [sp, #256]
    ldp x0, x1, [sp]
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    add sp, sp, #256
    add x16, x16, #\words
    br x16
    .endm

    // Calls a function of the agent with a register as link.
    .macro HODO_CALL link, function
    adr \link, 79f
    b \function
79:
    .endm

    // The register whose number is at a bit of x7.
    .macro HODO_GET to, bit
    ubfx \to, x7, #\bit, #5
    ldr \to, [sp, \to, lsl #3]
    .endm

    // Another value for the register of the result. Clobbers x17.
    .macro HODO_SET from
    ubfx x17, x7, #5, #5
    str \from, [sp, x17, lsl #3]
    .endm

    // Another value for all words of the window.
    .macro HODO_SET_WINDOW from
    str \from, [x6, #{WINDOW}]
    str \from, [x6, #{LOWERED_WINDOWS}]
    str \from, [x6, #({LOWERED_WINDOWS} + 8)]
    .endm

    // A constant of 32 bits.
    .macro HODO_CONSTANT to, value
    movz \to, #((\value) & 0xffff)
    movk \to, #((\value) >> 16), lsl #16
    .endm

    // Adds to a word that only this thread and its signal handlers change: `old` = what it was. Clobbers the register
    // `sum`, and w15.
    .macro HODO_ADD old, more, sum, at
78: ldxr \old, [\at]
    add \sum, \old, \more
    stxr w15, \sum, [\at]
    cbnz w15, 78b
    .endm

    // Sets the word that says whether a part of the shadow is being mapped: `old` = what it was. Clobbers x15, x17, and
    // the register `one`, which becomes 1.
    .macro HODO_SET_BUSY old, one
    add x17, x6, #{SHADOW_BUSY}
    mov \one, #1
76: ldxr \old, [x17]
    stxr w15, \one, [x17]
    cbnz w15, 76b
    .endm
"#
    };
}
pub(crate) use macros;
