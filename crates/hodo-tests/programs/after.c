// Instructions whose results are known, at known distances from the beginnings of their functions.
#include <stdio.h>
#include <unistd.h>

long steps(long n);
long own_pid(void);

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
        ".size own_pid, . - own_pid\n");
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
        ".option pop\n");
#endif

int main(void) {
    steps(3);
    steps(4);
    printf("%ld %d\n", own_pid(), getpid());
    return 0;
}
