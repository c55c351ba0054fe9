# Functions that return more than a register.

.macro function name
.globl \name
.type \name, @function
\name:
.endm

.macro end name
.size \name, . - \name
.endm

.text
function is_below
    cmp $5, %rdi
    ret
end is_below

function inline_data
    mov (%rsp), %rdx
    movzbl (%rdx), %eax
    incq (%rsp)
    ret
end inline_data

function pops_arguments
    mov 8(%rsp), %rax
    add 16(%rsp), %rax
    nop
    nop
    ret $16
end pops_arguments

function all_registers
    lea 1(%r10, %r11), %rax
    add %rbx, %rax
    nop
    nop
    ret
end all_registers

.section .note.GNU-stack, "", @progbits
