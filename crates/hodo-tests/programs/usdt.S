# A USDT probe that is executed only if it is wanted; the exit status tells how often it is. As sys/sdt.h makes it: a nop, and a note with its place, its semaphore and its arguments.
        .text
        .globl  main
        .type   main, @function
main:
#if defined(__riscv)
        addi    sp, sp, -32
        sd      s0, 24(sp)
        addi    s0, sp, 32
        li      a0, -7
        li      a1, 1234
        sd      a1, -16(s0)
        lla     a1, table
        lla     a2, wanted
        lhu     a3, (a2)
        beqz    a3, 1f
step:   nop
1:      lhu     a0, (a2)
        ld      s0, 24(sp)
        addi    sp, sp, 32
        ret
#define ARGUMENTS "-4@a0 8@-16(s0) 4@5 -4@4(a1) 2@(a2)"
#elif defined(__aarch64__)
        sub     sp, sp, #32
        str     x29, [sp, #24]
        mov     w0, #-7
        mov     x1, #1234
        str     x1, [sp, #16]
        add     x29, sp, #32
        adrp    x1, table
        add     x1, x1, :lo12:table
        adrp    x2, wanted
        add     x2, x2, :lo12:wanted
        ldrh    w3, [x2]
        cbz     w3, 1f
step:   nop
1:      ldrh    w0, [x2]
        ldr     x29, [sp, #24]
        add     sp, sp, #32
        ret
#define ARGUMENTS "-4@x0 8@[x29, -16] 4@5 -4@[x1, 4] 2@[x2]"
#else
        push    %rbp
        mov     %rsp, %rbp
        sub     $16, %rsp
        mov     $-7, %edi
        movq    $1234, -16(%rbp)
        cmpw    $0, wanted(%rip)
        je      1f
step:   nop
1:      movzwl  wanted(%rip), %eax
        leave
        ret
#define ARGUMENTS "-4@%edi 8@-16(%rbp) 4@$5 -4@table+4(%rip) 2@wanted(%rip)"
#endif
        .size   main, . - main

        .data
        .balign 2
wanted: .short  0
        .balign 4
table:  .long   0, -77

        .section .stapsdt.base, "aG", "progbits", .stapsdt.base, comdat
        .weak   _.stapsdt.base
        .hidden _.stapsdt.base
_.stapsdt.base: .space 1
        .size   _.stapsdt.base, 1

        .section .note.stapsdt, "", "note"
        .balign 4
        .long   8, 2f - 1f, 3
        .asciz  "stapsdt"
1:      .quad   step, _.stapsdt.base, wanted
        .asciz  "tests"
        .asciz  "step"
        .asciz  ARGUMENTS
2:      .balign 4
        .section .note.GNU-stack, "", @progbits
