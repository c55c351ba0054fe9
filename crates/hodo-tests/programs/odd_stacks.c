// Stacks in all kinds of memory, also where the program has its own memory in place of their shadow.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define SIZE (1ul << 18)
#if defined(__riscv)
#define DISTANCE 0x2000000840ul
#elif defined(__aarch64__)
#define DISTANCE 0x4000000840ul
#else
#define DISTANCE 0x40000000840ul
#endif

volatile long sink;

__attribute__((noinline, noclone)) int leaf(int x) {
    sink += x;
    return x + 1;
}

__attribute__((noinline, noclone)) int deep(int n) {
    int result = n ? deep(n - 1) : leaf(0);
    sink += result;
    return result + 1;
}

static __thread ucontext_t caller, callee;

static void on_stack(void) {
    for (int i = 0; i < 5; i++) {
        deep(50);
        swapcontext(&callee, &caller);
    }
}

static void run(const char *what, void *stack, unsigned long size) {
    if (stack == MAP_FAILED) {
        printf("%s: none\n", what);
        return;
    }
    getcontext(&callee);
    callee.uc_stack.ss_sp = stack;
    callee.uc_stack.ss_size = size;
    callee.uc_link = &caller;
    makecontext(&callee, on_stack, 0);
    for (int i = 0; i < 6; i++)
        swapcontext(&caller, &callee);
    printf("%s\n", what);
}

static void *at(unsigned long address, unsigned long size, int flags) {
    return mmap((void *)address, size, PROT_READ | PROT_WRITE, flags | (address ? MAP_FIXED_NOREPLACE : 0), -1, 0);
}

static void *odd;

static void *thread(void *number) {
    char what[32];
    sprintf(what, "thread");
    run(what, (char *)odd + (long)number * SIZE, SIZE);
    return 0;
}

static char in_data[SIZE] __attribute__((aligned(16)));

int main(void) {
    setvbuf(stdout, 0, _IOLBF, 0);
    const int private = MAP_PRIVATE | MAP_ANONYMOUS, shared = MAP_SHARED | MAP_ANONYMOUS;
    run("data", in_data, SIZE);
    run("heap", malloc(SIZE), SIZE);
    run("shared", at(0, SIZE, shared), SIZE);
    run("growing", at(0, SIZE, private | MAP_GROWSDOWN), SIZE);
    run("low", at(0x100000, SIZE, private), SIZE);
    run("above the distance", at(0x40000000000, SIZE, private), SIZE);
    run("odd", at(0x310000000000, SIZE, private), SIZE);
    int file = open("stack", O_RDWR | O_CREAT | O_TRUNC, 0600);
    ftruncate(file, SIZE);
    run("file", mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), SIZE);
    // Something is already mapped where the shadow of the last stacks would be.
    unsigned long stack = 0x320000000000;
    char *own = at((stack - DISTANCE) & ~0xFFFFFul, 4ul << 20, private);
    memset(own, 0x5A, 4ul << 20);
    run("with its shadow taken", at(stack, SIZE, private), SIZE);
    char *closed = at((stack + (1ul << 30) - DISTANCE) & ~0xFFFFFul, 4ul << 20, private);
    mprotect(closed, 4ul << 20, PROT_NONE);
    run("with its shadow closed", at(stack + (1ul << 30), SIZE, private), SIZE);
    long wrong = 0;
    for (long i = 0; i < 4l << 20; i++)
        wrong += own[i] != 0x5A;
    printf("%ld wrong\n", wrong);
    // Threads whose stacks share a piece of the shadow.
    odd = at(0x330000000000, 4 * SIZE, private);
    pthread_t threads[4];
    for (long i = 0; i < 4; i++)
        pthread_create(threads + i, 0, thread, (void *)i);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], 0);
    int status;
    if (fork() == 0) {
        run("in a child", odd, SIZE);
        _exit(3);
    }
    wait(&status);
    printf("%x\n", status);
    return 0;
}
