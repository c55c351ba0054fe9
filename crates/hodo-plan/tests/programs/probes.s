# Functions whose plans are known.
        .text
        .macro function name
        .globl \name
        .type \name, @function
\name:
        .endm
        .macro end name
        .size \name, . - \name
        .endm

        .balign 16
        function main
        xor %eax, %eax
        ret
        end main

        # A loop to its own start: it is moved as a whole.
        .balign 16, 0x90
        function itself
        dec %edi
        jnz itself
        ret
        end itself

        # One byte, followed by padding.
        .balign 16, 0x90
        function one
        ret
        end one

        # One byte, followed by another function.
        .balign 16, 0x90
        function narrow
        ret
        end narrow
        function follower
        mov $1, %eax
        ret
        end follower

        .balign 16, 0x90
        function table
        lea entries(%rip), %rdx
        movslq (%rdx,%rdi,4), %rax
        add %rdx, %rax
        jmp *%rax
first:  mov $1, %eax
        ret
second: mov $2, %eax
        ret
third:  mov $3, %eax
        ret
        end table

        # The target of its jump is unknown.
        .balign 16, 0x90
        function computed
        lea slide(%rip), %rax
        lea (%rax,%rdi,4), %rax
        jmp *%rax
slide:  add $1, %esi
        nop
        add $2, %esi
        nop
        add $3, %esi
        nop
        ret
        end computed

        .balign 16, 0x90
        function counted
        jrcxz 2f
1:      add %rcx, %rax
        loop 1b
2:      ret
        end counted

        # Calls end regions.
        .balign 16, 0x90
        function calls
        push %rbx
        call one
        mov %eax, %ebx
        call *%rbx
        pop %rbx
        ret
        end calls

        # The loop's head has no room for a jump, and the loop is too long to be moved as a whole.
        .balign 16, 0x90
        function hops
        mov $7, %ecx
        jmp 2f
1:      inc %eax
2:      call one
        dec %ecx
        jnz 1b
        mov %eax, %edx
        mov %eax, %esi
        add $9, %edx
        ret
        end hops

        .balign 16, 0x90
        function flags
        cmp $1, %edi
        mov $5, %eax
        je 1f
        mov $6, %eax
1:      ret
        end flags

        .balign 16, 0x90
        function transaction
        xbegin 1f
        inc %eax
        xend
1:      ret
        end transaction

        .balign 16, 0x90
        function prefixed
        test %edi, %edi
        je 1f
        lock
1:      cmpxchg %edx, (%rsi)
        ret
        end prefixed

        .balign 16, 0x90
        function far
        lretl
        end far

        # A sequence that the kernel restarts. Its abort handler follows the bytes that the kernel compares.
        .balign 16, 0x90
        function restarted
        mov $1, %eax
1:      mov (%rdi), %eax
        mov %eax, (%rsi)
2:      ret
        .byte 0x0f, 0xb9, 0x3d
        .long 0x53053053
3:      mov $2, %eax
        ret
        end restarted

        .section __rseq_cs, "aw"
        .balign 32
        .long 0, 0
        .quad 1b, 2b - 1b, 3b

        .section .rodata
        .balign 4
entries:
        .long first - entries, second - entries, third - entries

        .section .note.GNU-stack, "", @progbits
