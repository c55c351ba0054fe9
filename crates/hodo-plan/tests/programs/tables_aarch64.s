# Data whose address code forms, as for jump tables: distances from the start of the data.
        .text

# The first word leads into the middle of an instruction, so this is not a table.
        .globl  reads_data
        .hidden reads_data
        .type   reads_data, %function
reads_data:
        adrp    x1, data
        add     x1, x1, :lo12:data
        ldr     w0, [x1]
        ret
        .size   reads_data, . - reads_data

# A table of one entry, and other data after it.
        .globl  jumps
        .hidden jumps
        .type   jumps, %function
jumps:
        adrp    x1, table
        add     x1, x1, :lo12:table
        ldrsw   x0, [x1]
        add     x0, x0, x1
        br      x0
        nop
        .globl  case
        .hidden case
case:
        mov     w0, #1
        ret
        .size   jumps, . - jumps

        .section .rodata
        .balign 4
data:   .word   reads_data + 2 - .
table:  .word   case - .
        .word   jumps + 3 - table
