// Ends, below open frames, in the way that the argument names.
#define _GNU_SOURCE
#include "machine.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((noipa)) int step(int n) { return n + 1; }

static void *ends_all(void *unused) { exit(step(10)); }

__attribute__((noipa)) void end(const char *how) {
    for (int i = 0; i < 1000; i++)
        step(i);
    if (!strcmp(how, "_exit"))
        _exit(3);
    if (!strcmp(how, "exit"))
        exit(4);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "kill"))
        kill(getpid(), SIGKILL);
    if (!strcmp(how, "term"))
        raise(SIGTERM);
    if (!strcmp(how, "fault"))
        *(volatile int *)0 = 1;
    if (!strcmp(how, "trap"))
        __asm__ volatile(BREAKPOINT);
    if (!strcmp(how, "illegal"))
#if defined(__x86_64__)
        __builtin_trap();
#else
        __asm__ volatile(ILLEGAL); // a trap is a breakpoint there
#endif
    if (!strcmp(how, "thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, ends_all, NULL);
        for (;;)
            pause();
    }
    if (!strcmp(how, "main-thread"))
        syscall(SYS_exit, 9);
    if (!strcmp(how, "pipe"))
        raise(SIGPIPE);
}

__attribute__((noipa)) void outer(const char *how) {
    end(how);
    step(0);
}

int main(int argc, char **argv) {
    puts(argv[1]);
    fflush(stdout);
    outer(argv[1]);
    return 0;
}
