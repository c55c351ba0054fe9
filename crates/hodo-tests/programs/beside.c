/* Threads and processes that have their maker's memory and its thread pointer. The argument tells which:
   process   a child, while its maker goes on
   thread    the same as a thread of the process
   nested    a child, then one of vfork, during which the first one ends
   loops     a thread that goes on until the input ends, for who attaches
   apart     the same as a process
   vfork     a child of vfork, for which its maker waits until the input ends */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FUNCTION __attribute__((noipa))

/* How many microseconds the observer may take to see that a child has ended. What comes before is missed only where
   the two cannot be told apart, and that is tested on a slow machine. */
#ifndef __x86_64__
#define WATCHED 1500000
#else
#define WATCHED 200000
#endif

static const int process = CLONE_VM | SIGCHLD;
static const int thread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;

static volatile long sums[3];
static volatile int ended, ending;
static char *stack;

FUNCTION void before(long n) { sums[0] += n; }
FUNCTION void in_child(long n) { sums[1] += n; }
FUNCTION void beside(long n) { sums[0] += n; }
FUNCTION void in_vfork(long n) { sums[2] += n; }
FUNCTION void after(long n) { sums[0] += n; }

static int child(void *nothing) {
    for (long n = 0; n < 20000; n++)
        in_child(n);
    ended = 1;
    return 7;
}

static int until_told(void *nothing) {
    for (long n = 0; !ending; n++)
        in_child(n);
    ended = 1;
    return 7;
}

static int make(int (*run)(void *), int flags) {
    int tid = clone(run, stack + (1 << 20), flags, NULL);
    if (tid < 0)
        exit(1);
    return tid;
}

static void until_thread_is_gone(int tid) {
    while (!ended)
        usleep(1000);
    /* It has ended when no signal can be sent to it. */
    while (tgkill(getpid(), tid, 0) == 0)
        usleep(1000);
}

/* A child of vfork, during which the other child ends. */
static int nested(int other) {
    int status;
    int pid = vfork();
    if (pid == 0) {
        ending = 1;
        while (!ended)
            usleep(1000);
        usleep(WATCHED);
        for (long n = 0; n < 40; n++)
            in_vfork(n);
        _exit(3);
    }
    for (long n = 0; n < 30; n++)
        after(n);
    waitpid(pid, &status, 0);
    return WEXITSTATUS(status) == 3 ? other : -1;
}

static int waits_for_input(void) {
    char byte;
    return (int)read(0, &byte, 1);
}

static int attached(const char *how) {
    int status = 0, tid = 0;
    if (strcmp(how, "vfork") == 0) {
        if (vfork() == 0) {
            (void)!write(1, "begun\n", 6);
            _exit(waits_for_input());
        }
    } else {
        tid = make(until_told, strcmp(how, "loops") == 0 ? thread : process);
        (void)!write(1, "begun\n", 6);
        /* Until there is input. */
        for (long n = 0; !ending; n++) {
            beside(n);
            if (n % 100000 == 0) {
                fd_set set;
                struct timeval none = {0};
                FD_ZERO(&set);
                FD_SET(0, &set);
                ending = select(1, &set, NULL, NULL, &none);
            }
        }
    }
    if (strcmp(how, "loops") == 0)
        until_thread_is_gone(tid);
    else
        wait(&status);
    printf("ended\n");
    return 0;
}

int main(int argc, char **argv) {
    const char *how = argv[1];
    int status = 0;
    stack = malloc(1 << 20);
    if (strcmp(how, "loops") == 0 || strcmp(how, "apart") == 0 || strcmp(how, "vfork") == 0)
        return attached(how);
    for (long n = 0; n < 10; n++)
        before(n);
    int is_thread = strcmp(how, "thread") == 0;
    int is_nested = strcmp(how, "nested") == 0;
    int tid = make(is_nested ? until_told : child, is_thread ? thread : process);
    if (is_nested) {
        if (nested(tid) != tid)
            return 2;
        waitpid(tid, &status, 0);
        printf("%ld %d\n", sums[2], WEXITSTATUS(status));
        return 5;
    }
    for (long n = 0; n < 20000; n++)
        beside(n);
    if (is_thread)
        until_thread_is_gone(tid);
    else
        waitpid(tid, &status, 0);
    usleep(WATCHED);
    for (long n = 0; n < 30; n++)
        after(n);
    printf("%ld %ld %d\n", sums[0], sums[1], WEXITSTATUS(status));
    return 5;
}
