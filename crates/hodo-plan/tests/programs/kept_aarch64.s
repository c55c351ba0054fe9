# Functions whose callers, written by hand, keep values in temporary registers.
        .text

# Overwrites temporaries only where it ends the program.
        .globl  asserts
        .hidden asserts
        .type   asserts, %function
asserts:
        mov     x14, x0
        cbz     x14, 1f
        mov     x0, #1
        ret
1:      mov     x9, #1
        bl      fatal
        nop
        .size   asserts, . - asserts

        .globl  fatal
        .hidden fatal
        .type   fatal, %function
fatal:
        mov     x10, #1
        mov     x11, #1
        b       fatal
        .size   fatal, . - fatal

# Calls another in the same way, but returns from there.
        .globl  calls
        .hidden calls
        .type   calls, %function
calls:
        mov     x12, x30
        bl      other
        mov     x30, x12
        ret
        .size   calls, . - calls

        .globl  other
        .hidden other
        .type   other, %function
other:
        mov     x13, #1
        ret
        .size   other, . - other
