// Threads deep in recursion, in short calls, asleep, in handlers on other stacks, in contexts of their own. Each
// reports what it finds wrong. On an input line it forks a child, which does the same with one thread. Ends when its
// input does.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static atomic_int ending;
static atomic_int wrong;

static void expect(const char *what, long got, long wanted) {
    if (got != wanted) {
        printf("%s: %ld (%s), not %ld\n", what, got, strerror(errno), wanted);
        wrong++;
    }
}

__attribute__((noipa)) long deep(long n) {
    volatile long local = n;
    if (n == 1)
        usleep(200);
    return n ? deep(n - 1) + local : 0;
}

__attribute__((noipa)) long leaf(long n) { return n * 3 + 1; }

static void *recursion(void *unused) {
    (void)unused;
    while (!ending)
        expect("deep", deep(1000), 500500);
    return NULL;
}

static void *leaves(void *unused) {
    (void)unused;
    while (!ending)
        for (long i = 0; i < 1000; i++)
            expect("leaf", leaf(i), i * 3 + 1);
    return NULL;
}

static void *sleeping(void *unused) {
    (void)unused;
    while (!ending) {
        struct timespec time = {0, 3000000};
        expect("nanosleep", nanosleep(&time, NULL), 0);
        expect("leaf", leaf(1), 4);
    }
    return NULL;
}

__attribute__((noipa)) void handler(int signal) {
    while (!ending)
        expect("in a handler", deep(signal), signal * (signal + 1) / 2);
}

// No signal but this one: if hodo is killed while it handles a signal, nobody completes that.
static void *handling(void *unused) {
    static char stack[64 << 10];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    (void)unused;
    sigaltstack(&other, NULL);
    sigaction(SIGUSR1, &action, NULL);
    expect("raise", raise(SIGUSR1), 0);
    return NULL;
}

static __thread ucontext_t outside, inside;

static void coroutine(void) {
    for (;;) {
        expect("in a context", deep(50), 1275);
        swapcontext(&inside, &outside);
    }
}

static void *contexts(void *unused) {
    static char stack[256 << 10];
    (void)unused;
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = sizeof stack;
    makecontext(&inside, coroutine, 0);
    while (!ending) {
        swapcontext(&outside, &inside);
        expect("outside", leaf(2), 7);
    }
    return NULL;
}

// What a child does, and its parent beside its threads.
static void work(void) {
    for (int i = 0; i < 20; i++)
        expect("deep", deep(100), 5050);
}

int main(void) {
    static void *(*const all[])(void *) = {recursion, leaves, sleeping, handling, contexts};
    enum { COUNT = sizeof all / sizeof *all };
    pthread_t threads[COUNT];
    pid_t children[16];
    int count = 0;
    char byte;
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 0; i < COUNT; i++)
        pthread_create(&threads[i], NULL, all[i], NULL);
    puts("begun");
    while (read(0, &byte, 1) > 0) {
        if (byte != '\n' || count == 16)
            continue;
        if (!(children[count] = fork())) {
            wrong = 0;
            while (!wrong)
                work();
            _exit(1);
        }
        printf("child %d\n", children[count++]);
    }
    ending = 1;
    for (int i = 0; i < COUNT; i++)
        pthread_join(threads[i], NULL);
    work();
    for (int i = 0; i < count; i++) {
        int status;
        kill(children[i], SIGTERM);
        expect("waitpid", waitpid(children[i], &status, 0), children[i]);
        expect("a child", status, SIGTERM);
    }
    printf("wrong: %d\n", wrong);
    return 0;
}
