# A USDT probe that is executed only if it is wanted; the exit status tells how often it is. As sys/sdt.h makes it: a nop, and a note with its place, its semaphore and its arguments.
        .text
        .globl  main
        .type   main, @function
main:
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
        .asciz  "-4@%edi 8@-16(%rbp) 4@$5 -4@table+4(%rip) 2@wanted(%rip)"
2:      .balign 4
        .section .note.GNU-stack, "", @progbits
