// Asks for the base of gs, and sets it, by the function of libc and by the number of the call, while threads run. What
// it prints does not depend on where its memory is.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SET_GS 0x1001
#define GET_FS 0x1003
#define GET_GS 0x1004

int arch_prctl(int code, unsigned long address);

static int by_number;
static atomic_int stop;

__attribute__((noipa)) int asks(int code, unsigned long address) {
    return by_number ? (int)syscall(SYS_arch_prctl, code, address) : arch_prctl(code, address);
}

__attribute__((noipa)) int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

static unsigned long base(void) {
    unsigned long at = 1;
    if (asks(GET_GS, (unsigned long)&at))
        return 2;
    return at;
}

static void *work(void *unused) {
    unsigned long sum = 0;
    (void)unused;
    while (!stop)
        sum += fib(12);
    return (void *)(sum % 144);
}

// Deep in the stack: these calls were begun while they were recorded, and end afterwards.
__attribute__((noipa)) unsigned long deep(int n, char *own) {
    unsigned long there;
    if (n) {
        there = deep(n - 1, own);
        __asm__ volatile("" : "+r"(there)); // no loop
        return there + 1;
    }
    if (asks(SET_GS, (unsigned long)own))
        return 1 << 20;
    __asm__ volatile("movq %%gs:8, %0" : "=r"(there));
    return there;
}

int main(int argc, char **argv) {
    static char own[2][4096];
    pthread_t threads[4];
    (void)argv;
    by_number = argc > 1;
    unsigned long thread = 0;
    printf("%d base %lx, thread %d\n", by_number, base(), asks(GET_FS, (unsigned long)&thread) == 0 && thread != 0);
    for (int i = 0; i < 4; i++)
        pthread_create(threads + i, NULL, work, NULL);
    fib(15);
    for (int i = 0; i < 2; i++) {
        unsigned long mark = 1000 * (i + 1);
        memcpy(own[i] + 8, &mark, sizeof mark);
        printf("%lu\n", deep(10, own[i]));
        printf("own %d, %d\n", base() == (unsigned long)own[i], fib(20));
    }
    // Threads and processes that are made afterwards.
    pthread_t late;
    pthread_create(&late, NULL, work, NULL);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        printf("child %d, %d\n", base() == (unsigned long)own[1], fib(10));
        return 0;
    }
    waitpid(child, NULL, 0);
    // Nothing else has been written there.
    for (int i = 0; i < 2; i++) {
        unsigned long mark = 1000 * (i + 1), zero = 0;
        memcpy(own[i] + 8, &zero, sizeof zero);
        for (unsigned at = 0; at < sizeof own[i]; at++)
            if (own[i][at])
                printf("%d: changed at %u\n", i, at);
        printf("%lu\n", mark);
    }
    stop = 1;
    pthread_join(late, NULL);
    for (int i = 0; i < 4; i++) {
        void *end;
        pthread_join(threads[i], &end);
        printf("%lu\n", (unsigned long)end);
    }
    return 0;
}
