// Fills all registers, calls the stubs, and stores what they contain then: see registers.c.
// x0 to x15 and x18 to x28 at offset 0, q0 to q31 at 256, fpcr at 768, fpsr at 776.
    .bss
    .balign 64
    .globl wanted_at_entry, found_at_entry, wanted_at_return, found_at_return, level, ruins_vectors
wanted_at_entry: .zero 4096
found_at_entry: .zero 4096
wanted_at_return: .zero 4096
found_at_return: .zero 4096
level: .zero 4
ruins_vectors: .zero 4

    .macro address of
    adrp x16, \of
    add x16, x16, :lo12:\of
    .endm

    .macro load from
    address \from
    ldr x0, [x16, #768]
    msr fpcr, x0
    ldr x1, [x16, #776]
    msr fpsr, x1
    add x17, x16, #256
    .irp pair, "q0, q1", "q2, q3", "q4, q5", "q6, q7", "q8, q9", "q10, q11", "q12, q13", "q14, q15", "q16, q17", "q18, q19", "q20, q21", "q22, q23", "q24, q25", "q26, q27", "q28, q29", "q30, q31"
    ldp \pair, [x17], #32
    .endr
    .irp pair, "x0, x1", "x2, x3", "x4, x5", "x6, x7", "x8, x9", "x10, x11", "x12, x13", "x14, x15", "x18, x19", "x20, x21", "x22, x23", "x24, x25", "x26, x27"
    ldp \pair, [x16], #16
    .endr
    ldr x28, [x16]
    .endm

    .macro store to
    address \to
    mov x17, x16
    .irp pair, "x0, x1", "x2, x3", "x4, x5", "x6, x7", "x8, x9", "x10, x11", "x12, x13", "x14, x15", "x18, x19", "x20, x21", "x22, x23", "x24, x25", "x26, x27"
    stp \pair, [x16], #16
    .endr
    str x28, [x16]
    mrs x0, fpcr
    mrs x1, fpsr
    str x0, [x17, #768]
    str x1, [x17, #776]
    add x17, x17, #256
    .irp pair, "q0, q1", "q2, q3", "q4, q5", "q6, q7", "q8, q9", "q10, q11", "q12, q13", "q14, q15", "q16, q17", "q18, q19", "q20, q21", "q22, q23", "q24, q25", "q26, q27", "q28, q29", "q30, q31"
    stp \pair, [x17], #32
    .endr
    .endm

    .text
// A function as -pg makes it. x0 is what it passes to _mcount.
by_mcount:
    .cfi_startproc
    stp x29, x30, [sp, #-16]!
    .cfi_def_cfa_offset 16
    .cfi_offset x29, -16
    .cfi_offset x30, -8
    mov x29, sp
    bl _mcount
    store found_at_entry
    load wanted_at_return
    ldp x29, x30, [sp], #16
    ret
    .cfi_endproc

    .globl call_by_mcount, call_by_fentry
call_by_mcount:
call_by_fentry:
    .cfi_startproc
    stp x29, x30, [sp, #-192]!
    .cfi_def_cfa_offset 192
    .cfi_offset x29, -192
    .cfi_offset x30, -184
    mov x29, sp
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mrs x16, fpcr
    mrs x17, fpsr
    stp x16, x17, [sp, #160]
    str x18, [sp, #176]
    load wanted_at_entry
    bl by_mcount
    store found_at_return
    mov x16, sp
    cmp x29, x16
    b.ne 2f
    ldp x16, x17, [sp, #160]
    msr fpcr, x16
    msr fpsr, x17
    ldr x18, [sp, #176]
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x29, x30, [sp], #192
    ret
2:  brk #0
    .cfi_endproc

// A hook that changes all registers it may. It wants returns to be traced.
    .globl ruin
ruin:
    address ruins_vectors
    ldr w16, [x16]
    cbz w16, 1f
    mov x0, #-1
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    dup v\n\().2d, x0
    .endr
    // Of these, functions preserve the lower halves.
    .irp n, 8, 9, 10, 11, 12, 13, 14, 15
    mov v\n\().d[1], x0
    .endr
    msr fpsr, xzr
    mov x0, #0xC00000
    msr fpcr, x0
1:
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18
    mov x\n, #-1
    .endr
    ret

    .section .note.GNU-stack, "", %progbits
