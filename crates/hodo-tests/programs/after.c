// Instructions whose results are known, at known distances from the beginnings of their functions.
#include <stdio.h>
#include <unistd.h>

long steps(long n);
long own_pid(void);
// Instructions of all kinds that name an address, or that others must follow. Adds the two words in its code and their
// double word to its argument.
long varied(long n);

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl steps\n"
        ".type steps,@function\n"
        "steps:\n"
        ".cfi_startproc\n"
        "lea 5(%rdi), %rax\n" // 0
        "add %rax, %rax\n"    // 4: the next instruction is a loop's first
        "1: dec %rdi\n"       // 7
        "jnz 1b\n"            // 10
        "ret\n"               // 12
        ".cfi_endproc\n"
        ".size steps, . - steps\n"
        ".p2align 4\n"
        ".globl own_pid\n"
        ".type own_pid,@function\n"
        "own_pid:\n"
        ".cfi_startproc\n"
        "mov $39, %eax\n" // 0
        "syscall\n"       // 5
        "nop\n"           // 7
        "ret\n"
        ".cfi_endproc\n"
        ".size own_pid, . - own_pid\n"
        ".globl varied\n"
        ".type varied,@function\n"
        "varied:\n"
        ".cfi_startproc\n"
        "push %rbp\n"
        "mov %rsp, %rbp\n"
        "push %rdi\n"
        "lea 8f(%rip), %rcx\n"
        "mov 8f(%rip), %rdx\n"
        "cmp (%rcx), %rdx\n"
        "jne 9f\n"
        "lock add %rdx, (%rsp)\n"
        "movslq (%rcx), %rsi\n"
        "call 7f\n"
        "mov (%rsp), %rax\n"
        "add %rsi, %rax\n"
        "9: leave\n"
        "ret\n"
        "7: add 4(%rcx), %esi\n"
        "ret\n"
        ".p2align 3\n"
        "8: .long 42, 7\n"
        ".cfi_endproc\n"
        ".size varied, . - varied\n");
#elif defined(__riscv)
__asm__(".text\n"
        ".option push\n"
        ".option norvc\n"
        ".p2align 2\n"
        ".globl steps\n"
        ".type steps,@function\n"
        "steps:\n"
        ".cfi_startproc\n"
        "addi a1, a0, 5\n"     // 0
        "add a1, a1, a1\n"     // 4: the next instruction is a loop's first
        "1: addi a0, a0, -1\n" // 8
        "bnez a0, 1b\n"        // 12
        "ret\n"                // 16
        ".cfi_endproc\n"
        ".size steps, . - steps\n"
        ".globl own_pid\n"
        ".type own_pid,@function\n"
        "own_pid:\n"
        ".cfi_startproc\n"
        "li a7, 172\n" // 0
        "ecall\n"      // 4
        "nop\n"        // 8
        "ret\n"
        ".cfi_endproc\n"
        ".size own_pid, . - own_pid\n"
        ".globl varied\n"
        ".type varied,@function\n"
        "varied:\n"
        ".cfi_startproc\n"
        "addi sp, sp, -32\n"
        "sd ra, 24(sp)\n"
        "sd a0, 0(sp)\n"
        "lla a1, 8f\n"
        "ld a2, 0(a1)\n"
        "beqz a2, 9f\n"
        "1: lr.d a3, (sp)\n"
        "add a3, a3, a2\n"
        "sc.d a4, a3, (sp)\n"
        "bnez a4, 1b\n"
        "lw a5, 0(a1)\n"
        "lw a6, 4(a1)\n"
        "jal ra, 7f\n"
        "ld a0, 0(sp)\n"
        "add a0, a0, a5\n"
        "9: ld ra, 24(sp)\n"
        "addi sp, sp, 32\n"
        "ret\n"
        "7: add a5, a5, a6\n"
        "ret\n"
        ".p2align 3\n"
        "8: .word 42, 7\n"
        ".cfi_endproc\n"
        ".size varied, . - varied\n"
        ".option pop\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".p2align 2\n"
        ".globl steps\n"
        ".type steps,@function\n"
        "steps:\n"
        ".cfi_startproc\n"
        "add x1, x0, #5\n"    // 0
        "add x1, x1, x1\n"    // 4: the next instruction is a loop's first
        "1: sub x0, x0, #1\n" // 8
        "cbnz x0, 1b\n"       // 12
        "ret\n"               // 16
        ".cfi_endproc\n"
        ".size steps, . - steps\n"
        ".globl own_pid\n"
        ".type own_pid,@function\n"
        "own_pid:\n"
        ".cfi_startproc\n"
        "mov x8, #172\n" // 0
        "svc #0\n"       // 4
        "nop\n"          // 8
        "ret\n"
        ".cfi_endproc\n"
        ".size own_pid, . - own_pid\n"
        ".globl varied\n"
        ".type varied,@function\n"
        "varied:\n"
        ".cfi_startproc\n"
        "hint #25\n" // paciasp
        "stp x29, x30, [sp, #-32]!\n"
        "mov x29, sp\n"
        "str x0, [sp, #16]!\n"
        "adr x1, 8f\n"
        "ldr x2, 8f\n"
        "ldr x3, [x1], #8\n"
        "cmp x2, x3\n"
        "b.ne 9f\n"
        "adrp x4, 8f\n"
        "add x4, x4, :lo12:8f\n"
        "ldr x5, [x4]\n"
        "ldpsw x6, x7, [x4], #8\n"
        "sub x8, x1, x4\n"
        "cbnz x8, 9f\n"
        "1: ldxr x9, [sp]\n"
        "add x9, x9, x5\n"
        "stxr w10, x9, [sp]\n"
        "cbnz w10, 1b\n"
        "tbz x5, #1, 9f\n"
        "tbnz x5, #0, 9f\n"
        "bl 7f\n"
        "ldr x0, [sp], #-16\n"
        "add x0, x0, x6\n"
        "9: ldp x29, x30, [sp], #32\n"
        "hint #29\n" // autiasp
        "ret\n"
        "7: hint #34\n" // bti c
        "add x6, x6, x7\n"
        "ret\n"
        ".p2align 3\n"
        "8: .word 42, 7\n"
        ".cfi_endproc\n"
        ".size varied, . - varied\n");
#endif

int main(void) {
    steps(3);
    steps(4);
    printf("%ld %d\n", own_pid(), getpid());
    return varied(5) != 5 + (7L << 32 | 42) + 42 + 7;
}
