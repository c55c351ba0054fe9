// Calls with every register filled: what the callee sees, and what the caller sees afterwards, goes to memory.

#if defined(__riscv)
// An image has 32 general and 32 floating-point registers, fcsr, vtype, vl, vcsr, and 32 vector registers of at most 32
// bytes; 1568 bytes.
// A register becomes free for an image's address only once its value is in the thread's own memory, which is near tp.
    .option arch, +v1p0

    .section .tbss, "awT", @nobits
    .balign 8
scratch: .zero 16
    .text

.macro STORE image
    sd t0, %tprel_lo(scratch)(tp)
    sd t1, %tprel_lo(scratch + 8)(tp)
    lla t0, \image
    .irp n, 2, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    sd x\n, 8 * \n(t0)
    .endr
    ld t1, %tprel_lo(scratch)(tp)
    sd t1, 8 * 5(t0)
    ld t1, %tprel_lo(scratch + 8)(tp)
    sd t1, 8 * 6(t0)
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    fsd f\n, 256 + 8 * \n(t0)
    .endr
    frcsr t1
    sd t1, 512(t0)
    lw t1, vectors
    beqz t1, 9f
    csrr t1, vtype
    sd t1, 520(t0)
    csrr t1, vl
    sd t1, 528(t0)
    csrr t1, vcsr
    sd t1, 536(t0)
    csrr t1, vlenb
    slli t1, t1, 3
    addi t0, t0, 544
    .irp n, 0, 8, 16, 24
    vs8r.v v\n, (t0)
    add t0, t0, t1
    .endr
9:
.endm

.macro LOAD image
    lw t1, vectors
    beqz t1, 9f
    csrr t1, vlenb
    slli t1, t1, 3
    lla t0, \image + 544
    .irp n, 0, 8, 16, 24
    vl8re8.v v\n, (t0)
    add t0, t0, t1
    .endr
    lla t0, \image
    ld t1, 520(t0)
    ld t2, 528(t0)
    vsetvl zero, t2, t1
    ld t1, 536(t0)
    csrw vcsr, t1
9:  lla t0, \image
    ld t1, 512(t0)
    fscsr t1
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    fld f\n, 256 + 8 * \n(t0)
    .endr
    .irp n, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    ld x\n, 8 * \n(t0)
    .endr
    ld t0, 8 * 5(t0)
.endm

.macro FUNCTION name
    .globl \name
    .type \name, @function
\name:
.endm

.macro END name
    .size \name, . - \name
.endm

// One function that calls `callee` with all registers filled.
.macro PROBE callee
    .p2align 4
FUNCTION probe_\callee
    addi sp, sp, -224
    sd ra, 0(sp)
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
    sd s\n, 8 + 8 * \n(sp)
    fsd fs\n, 104 + 8 * \n(sp)
    .endr
    frcsr t0
    sd t0, 200(sp)
    lla t0, given
    sd sp, 8 * 2(t0)
    LOAD given
    call \callee
    STORE after
    ld t0, 200(sp)
    fscsr t0
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
    ld s\n, 8 + 8 * \n(sp)
    fld fs\n, 104 + 8 * \n(sp)
    .endr
    ld ra, 0(sp)
    addi sp, sp, 224
    ret
END probe_\callee
.endm

    .text
PROBE long_first
PROBE short_first
PROBE marked
PROBE branch_first
PROBE tests_memory
PROBE jumps_on
PROBE only_returns
PROBE looping

    .p2align 4
FUNCTION long_first
    STORE seen
    LOAD returned
    ret
END long_first

    .p2align 4
FUNCTION short_first
    addi sp, sp, -16
    sd s0, 0(sp)
    sd s4, 8(sp)
    nop
    ld s4, 8(sp)
    ld s0, 0(sp)
    addi sp, sp, 16
    STORE seen
    LOAD returned
    ret
END short_first

// Begins with the instruction that marks targets of indirect calls, where that is enforced (`lpad`).
    .p2align 4
FUNCTION marked
    auipc zero, 0
    STORE seen
    LOAD returned
    ret
END marked

    .p2align 4
FUNCTION branch_first
    j 1f
    .2byte 0
1:  STORE seen
    LOAD returned
    ret
END branch_first

    .p2align 4
FUNCTION tests_memory
    lb zero, 0(sp)
    beq a0, s1, 1f
    nop
1:  STORE seen
    LOAD returned
    ret
END tests_memory

    .p2align 4
FUNCTION jumps_on
    lb zero, 0(sp)
    j long_first
END jumps_on

// A loop that begins at the function's first instruction: one call, two iterations.
    .p2align 4
FUNCTION looping
    not t3, t3
    bltz t3, looping
    STORE seen
    LOAD returned
    ret
END looping

// Two bytes, and the next function right after it.
FUNCTION only_returns
    ret
END only_returns
FUNCTION neighbour
    li a0, 42
    ret
END neighbour

FUNCTION vector_bytes
    csrr a0, vlenb
    ret
END vector_bytes

    .data
    .p2align 6
    .globl given, seen, returned, after, counter
given: .zero 1568
    .p2align 6
seen: .zero 1568
    .p2align 6
returned: .zero 1568
    .p2align 6
after: .zero 1568
counter: .long 0

#elif defined(__aarch64__)
// An image has x0 to x30 and sp, the flags, FPSR, FPCR and one free word, 32 vector registers of at most 256 bytes, 16
// predicates of at most 32 bytes, and FFR; 9024 bytes. Without SVE it has vector registers of 16 bytes.
// The registers for an image's address are on the stack for a moment. The flags are not stored, because a function that
// reads those it is entered with is not traced.
    .arch armv8-a+sve

.macro STORE image
    stp x16, x17, [sp, #-16]!
    adrp x16, \image
    add x16, x16, :lo12:\image
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30
    str x\n, [x16, #8 * \n]
    .endr
    ldr x17, [sp]
    str x17, [x16, #8 * 16]
    ldr x17, [sp, #8]
    str x17, [x16, #8 * 17]
    add sp, sp, #16
    mov x17, sp
    str x17, [x16, #8 * 31]
    mrs x17, fpsr
    str x17, [x16, #264]
    mrs x17, fpcr
    str x17, [x16, #272]
    adrp x17, vectors
    ldr w17, [x17, :lo12:vectors]
    cbz w17, 8f
    add x17, x16, #288
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    str z\n, [x17, #\n, mul vl]
    .endr
    add x17, x17, #2, lsl #12
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    str p\n, [x17, #\n, mul vl]
    .endr
    rdffr p0.b
    str p0, [x17, #16, mul vl]
    ldr p0, [x17]
    b 9f
8:  .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    str q\n, [x16, #288 + 16 * \n]
    .endr
9:
.endm

// All but x30 and sp.
.macro LOAD image
    adrp x16, \image
    add x16, x16, :lo12:\image
    ldr x17, [x16, #256]
    msr nzcv, x17
    ldr x17, [x16, #264]
    msr fpsr, x17
    ldr x17, [x16, #272]
    msr fpcr, x17
    adrp x17, vectors
    ldr w17, [x17, :lo12:vectors]
    cbz w17, 8f
    add x17, x16, #288
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    ldr z\n, [x17, #\n, mul vl]
    .endr
    add x17, x17, #2, lsl #12
    ldr p0, [x17, #16, mul vl]
    wrffr p0.b
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    ldr p\n, [x17, #\n, mul vl]
    .endr
    b 9f
8:  .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    ldr q\n, [x16, #288 + 16 * \n]
    .endr
9:  .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29
    ldr x\n, [x16, #8 * \n]
    .endr
    ldp x16, x17, [x16, #8 * 16]
.endm

.macro FUNCTION name
    .globl \name
    .type \name, @function
\name:
.endm

.macro END name
    .size \name, . - \name
.endm

// Saves or restores what functions must keep.
.macro SAVED what
    \what x19, x20, [sp, #16]
    \what x21, x22, [sp, #32]
    \what x23, x24, [sp, #48]
    \what x25, x26, [sp, #64]
    \what x27, x28, [sp, #80]
    \what d8, d9, [sp, #96]
    \what d10, d11, [sp, #112]
    \what d12, d13, [sp, #128]
    \what d14, d15, [sp, #144]
.endm

// One function that calls `callee` with all registers filled.
.macro PROBE callee
    .p2align 4
FUNCTION probe_\callee
    stp x29, x30, [sp, #-176]!
    SAVED stp
    mrs x9, fpcr
    str x9, [sp, #160]
    mov x9, sp
    adrp x10, given
    add x10, x10, :lo12:given
    str x9, [x10, #8 * 31]
    LOAD given
    bl \callee
7:  STORE after
    mrs x9, nzcv
    str x9, [x16, #256]
    adr x9, 7b
    adrp x10, place
    str x9, [x10, :lo12:place]
    ldr x9, [sp, #160]
    msr fpcr, x9
    SAVED ldp
    ldp x29, x30, [sp], #176
    ret
END probe_\callee
.endm

    .text
PROBE long_first
PROBE short_first
PROBE marked
PROBE branch_first
PROBE tests_memory
PROBE jumps_on
PROBE only_returns
PROBE looping
PROBE is_signed
PROBE signed_by_b

    .p2align 4
FUNCTION long_first
    STORE seen
    LOAD returned
    ret
END long_first

    .p2align 4
FUNCTION short_first
    stp x19, x20, [sp, #-16]!
    nop
    ldp x19, x20, [sp], #16
    STORE seen
    LOAD returned
    ret
END short_first

// Begins with the instruction that marks targets of indirect calls, where that is enforced (`bti c`).
    .p2align 4
FUNCTION marked
    hint #34
    STORE seen
    LOAD returned
    ret
END marked

// Keeps its return address signed, by either key (`paciasp` and `autiasp`, `pacibsp` and `autibsp`).
    .p2align 4
FUNCTION is_signed
    hint #25
    STORE seen
    LOAD returned
    hint #29
    ret
END is_signed

    .p2align 4
FUNCTION signed_by_b
    hint #27
    STORE seen
    LOAD returned
    hint #31
    ret
END signed_by_b

    .p2align 4
FUNCTION branch_first
    b 1f
    .4byte 0
1:  STORE seen
    LOAD returned
    ret
END branch_first

    .p2align 4
FUNCTION tests_memory
    ldr wzr, [sp]
    cbz x0, 1f
    nop
1:  STORE seen
    LOAD returned
    ret
END tests_memory

    .p2align 4
FUNCTION jumps_on
    ldr wzr, [sp]
    b long_first
END jumps_on

// A loop that begins at the function's first instruction: one call, two iterations.
    .p2align 4
FUNCTION looping
    mvn x11, x11
    tbnz x11, #63, looping
    STORE seen
    LOAD returned
    ret
END looping

// Four bytes, and the next function right after it.
FUNCTION only_returns
    ret
END only_returns
FUNCTION neighbour
    mov w0, #42
    ret
END neighbour

FUNCTION vector_bytes
    rdvl x0, #1
    ret
END vector_bytes

    .data
    .p2align 6
    .globl given, seen, returned, after, place, counter
given: .zero 9024
    .p2align 6
seen: .zero 9024
    .p2align 6
returned: .zero 9024
    .p2align 6
after: .zero 9024
place: .quad 0
counter: .long 0

#else
// An image is 512 bytes of fxsave (x87, mxcsr, xmm), 16 ymm, then the general registers; 1152 bytes.

.macro LOAD image
    fxrstor64 \image(%rip)
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vmovdqu \image + 512 + 32 * \n(%rip), %ymm\n
    .endr
    mov \image + 1024(%rip), %rax
    mov \image + 1032(%rip), %rbx
    mov \image + 1040(%rip), %rcx
    mov \image + 1048(%rip), %rdx
    mov \image + 1056(%rip), %rsi
    mov \image + 1064(%rip), %rdi
    mov \image + 1072(%rip), %rbp
    mov \image + 1080(%rip), %r8
    mov \image + 1088(%rip), %r9
    mov \image + 1096(%rip), %r10
    mov \image + 1104(%rip), %r11
    mov \image + 1112(%rip), %r12
    mov \image + 1120(%rip), %r13
    mov \image + 1128(%rip), %r14
    mov \image + 1136(%rip), %r15
.endm

.macro STORE image
    mov %rax, \image + 1024(%rip)
    mov %rbx, \image + 1032(%rip)
    mov %rcx, \image + 1040(%rip)
    mov %rdx, \image + 1048(%rip)
    mov %rsi, \image + 1056(%rip)
    mov %rdi, \image + 1064(%rip)
    mov %rbp, \image + 1072(%rip)
    mov %r8, \image + 1080(%rip)
    mov %r9, \image + 1088(%rip)
    mov %r10, \image + 1096(%rip)
    mov %r11, \image + 1104(%rip)
    mov %r12, \image + 1112(%rip)
    mov %r13, \image + 1120(%rip)
    mov %r14, \image + 1128(%rip)
    mov %r15, \image + 1136(%rip)
    mov %rsp, \image + 1144(%rip)
    fxsave64 \image(%rip)
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    vmovdqu %ymm\n, \image + 512 + 32 * \n(%rip)
    .endr
.endm

.macro FUNCTION name
    .globl \name
    .type \name, @function
\name:
.endm

.macro END name
    .size \name, . - \name
.endm

// One function that calls `callee` with all registers filled.
.macro PROBE callee
    .p2align 4
FUNCTION probe_\callee
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    sub $8, %rsp
    fxsave64 kept(%rip)
    LOAD given
    mov %rsp, given + 1144(%rip)
    call \callee
    STORE after
    fxrstor64 kept(%rip)
    vzeroupper
    add $8, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret
END probe_\callee
.endm

    .text
PROBE long_first
PROBE short_first
PROBE marked
PROBE branch_first
PROBE tests_memory
PROBE jumps_on
PROBE only_returns
PROBE looping

    .p2align 4
FUNCTION long_first
    STORE seen
    LOAD returned
    ret
END long_first

    .p2align 4
FUNCTION short_first
    push %rbx
    push %r12
    nop
    pop %r12
    pop %rbx
    STORE seen
    LOAD returned
    ret
END short_first

    .p2align 4
FUNCTION marked
    endbr64
    STORE seen
    LOAD returned
    ret
END marked

    .p2align 4
FUNCTION branch_first
    jmp 1f
    .byte 0xcc
1:  STORE seen
    LOAD returned
    ret
END branch_first

    .p2align 4
FUNCTION tests_memory
    cmpb $0, counter(%rip)
    je 1f
    nop
1:  STORE seen
    LOAD returned
    ret
END tests_memory

    .p2align 4
FUNCTION jumps_on
    cmpb $0, counter(%rip)
    jmp long_first
END jumps_on

// A loop that begins at the function's first instruction: one call, however many iterations.
    .p2align 4
FUNCTION looping
    decl counter(%rip)
    jg looping
    STORE seen
    LOAD returned
    ret
END looping

// One byte, and the next function right after it.
FUNCTION only_returns
    ret
END only_returns
FUNCTION neighbour
    mov $42, %eax
    ret
END neighbour

    .data
    .p2align 6
    .globl given, seen, returned, after, counter
given: .zero 1152
    .p2align 6
seen: .zero 1152
    .p2align 6
returned: .zero 1152
    .p2align 6
after: .zero 1152
    .p2align 6
kept: .zero 512
counter: .long 0
#endif

    .section .note.GNU-stack, "", @progbits
