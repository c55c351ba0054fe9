/* Spends nearly all its time in one loop until its input ends; reports whether each round was complete. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

volatile long a, b, c, d;

#if defined __x86_64__
#define ROUND \
    __asm__ volatile("addq $1, a(%%rip)\n addq $1, b(%%rip)\n addq $1, c(%%rip)\n addq $1, d(%%rip)\n" ::: "memory", "cc")
#elif defined __riscv
#define ADD(word) "ld t0, " word "\n addi t0, t0, 1\n sd t0, " word ", t1\n"
#define ROUND __asm__ volatile(ADD("a") ADD("b") ADD("c") ADD("d") ::: "memory", "t0", "t1")
#elif defined __aarch64__
#define ADD(word) "adrp x10, " word "\n ldr x9, [x10, :lo12:" word "]\n add x9, x9, #1\n str x9, [x10, :lo12:" word "]\n"
#define ROUND __asm__ volatile(ADD("a") ADD("b") ADD("c") ADD("d") ::: "memory", "x9", "x10")
#endif

__attribute__((noinline)) void work(void) {
    for (long i = 0; i < 100000; i++) ROUND;
}

int main(void) {
    char byte;
    fcntl(0, F_SETFL, O_NONBLOCK);
    puts("begun");
    fflush(stdout);
    while (read(0, &byte, 1) != 0) work();
    printf("%d\n", a == b && b == c && c == d);
    return 0;
}
