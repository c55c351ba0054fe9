// Coroutines on stacks that the program switches by assembly of its own: generators that yield from a recursion, and
// workers that switch to one another. Each prints what it does. A signal handler on a stack of its own runs in between.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

#define NOIPA __attribute__((noipa))

// Saves the registers that calls keep and the stack pointer, and continues where the other one was left.
void switch_to(void **from, void *to);
#if defined(__x86_64__)
#define SAVED 6
__asm__(".text\n.globl switch_to\n.type switch_to, @function\nswitch_to:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size switch_to, . - switch_to\n");
#elif defined(__riscv)
#define SAVED 13
__asm__(".text\n.globl switch_to\n.type switch_to, @function\nswitch_to:\n"
        "addi sp, sp, -112\n"
        "sd s0, 0(sp)\nsd s1, 8(sp)\nsd s2, 16(sp)\nsd s3, 24(sp)\nsd s4, 32(sp)\nsd s5, 40(sp)\n"
        "sd s6, 48(sp)\nsd s7, 56(sp)\nsd s8, 64(sp)\nsd s9, 72(sp)\nsd s10, 80(sp)\nsd s11, 88(sp)\n"
        "sd ra, 104(sp)\nsd sp, 0(a0)\nmv sp, a1\n"
        "ld s0, 0(sp)\nld s1, 8(sp)\nld s2, 16(sp)\nld s3, 24(sp)\nld s4, 32(sp)\nld s5, 40(sp)\n"
        "ld s6, 48(sp)\nld s7, 56(sp)\nld s8, 64(sp)\nld s9, 72(sp)\nld s10, 80(sp)\nld s11, 88(sp)\n"
        "ld ra, 104(sp)\naddi sp, sp, 112\nret\n"
        ".size switch_to, . - switch_to\n");
#elif defined(__aarch64__)
#define SAVED 12
__asm__(".text\n.globl switch_to\n.type switch_to, @function\nswitch_to:\n"
        "sub sp, sp, #112\n"
        "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\nstr x29, [sp, #80]\nstr x30, [sp, #96]\n"
        "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\nldr x29, [sp, #80]\nldr x30, [sp, #96]\n"
        "add sp, sp, #112\nret\n"
        ".size switch_to, . - switch_to\n");
#endif

enum { GENERATORS = 3, WORKERS = 3, ROUNDS = 50, SIZE = 64 << 10 };

static void *back, *generators[GENERATORS], *workers[WORKERS];
static int now, steps, ended, handled;

NOIPA int step(int i) { return ++steps + i - i; }

NOIPA void yield_in(int depth) {
    if (depth > 0)
        yield_in(depth - 1);
    else
        switch_to(&generators[now], back);
    __asm__ volatile("");
}

NOIPA void generator(void) {
    for (int i = 0;; i++) {
        step(i);
        yield_in(i % 4);
    }
}

NOIPA void pass_on(int from) {
    int to = (from + 1) % WORKERS;
    now = to;
    switch_to(&workers[from], workers[to]);
    __asm__ volatile("");
}

NOIPA void worker(void) {
    int self = now;
    for (int i = 0; i < ROUNDS; i++) {
        step(i);
        pass_on(self);
    }
    ended++;
    void *dead;
    switch_to(&dead, back);
}

static char *memory(void) {
    return mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// Returns a stack on which the function begins when it is switched to.
static void *begin(void (*function)(void)) {
    uintptr_t *top = (uintptr_t *)(memory() + SIZE);
    *--top = 0;
    *--top = (uintptr_t)function;
    return top - SAVED;
}

NOIPA void resume(int id) {
    now = id;
    switch_to(&back, generators[id]);
    __asm__ volatile("");
}

NOIPA void run_worker(int id) {
    now = id;
    switch_to(&back, workers[id]);
    __asm__ volatile("");
}

NOIPA void in_handler(void) { handled++; }

NOIPA void on_signal(int number) {
    (void)number;
    in_handler();
}

int main(void) {
    stack_t stack = {.ss_sp = memory(), .ss_size = SIZE};
    sigaltstack(&stack, 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    for (int i = 0; i < GENERATORS; i++)
        generators[i] = begin(generator);
    for (int i = 0; i < WORKERS; i++)
        workers[i] = begin(worker);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < GENERATORS; i++)
            resume(i);
        raise(SIGUSR1);
    }
    for (int i = 0; i < WORKERS; i++)
        run_worker(i);
    printf("%d %d %d\n", steps, ended, handled);
    return 0;
}
