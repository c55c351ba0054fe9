# Functions that are too short for a long jump, and have no free register: the code that they continue with uses all.

    .option rvc
    .text
    .macro FUNCTION name
    .type \name, @function
\name:
    .endm

    FUNCTION passes
    c.li a4, 1
    c.j takes
    .size passes, . - passes

    FUNCTION leaps
    c.j takes
    .size leaps, . - leaps

    FUNCTION falls
    c.li a4, 2
    .size falls, . - falls

    FUNCTION takes
    .irp register, t0, t1, t2, a1, a2, a3, a4, a5, a6, a7, t3, t4, t5, t6
    add a0, a0, \register
    .endr
    ret
    .size takes, . - takes
