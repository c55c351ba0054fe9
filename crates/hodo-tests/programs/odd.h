// Small cases of what programs may ask of the system: each runs in its own child, and prints what it has seen.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define NEVER __attribute__((noinline, noclone))

struct odd {
    const char *name;
    void (*run)(void);
};

static void say(const char *what, long value) {
    printf("  %s: %ld\n", what, value);
    fflush(stdout);
}

// Prints a result, or the error.
static void tell(const char *what, long result) {
    if (result < 0) printf("  %s: %s\n", what, strerror(errno));
    else printf("  %s: ok\n", what);
    fflush(stdout);
}

static void ended(int status) {
    if (WIFEXITED(status)) printf("  ended with %d\n", WEXITSTATUS(status));
    else if (WIFSIGNALED(status)) printf("  ended by signal %d\n", WTERMSIG(status));
    else if (WIFSTOPPED(status)) printf("  stopped by %d, event %d\n", WSTOPSIG(status), status >> 16);
    else printf("  status %#x\n", status);
    fflush(stdout);
}

static pid_t await(pid_t pid, int options) {
    int status = 0;
    pid_t got = waitpid(pid, &status, options);
    if (got > 0) ended(status);
    else tell("wait", got);
    return got;
}

NEVER static int work(int n) {
    volatile int sum = 0;
    for (int i = 0; i < n; i++) sum += i * n;
    return sum;
}

static int odd_main(int argc, char **argv, const struct odd *cases, int count) {
    for (int i = 0; i < count; i++) {
        if (argc > 1 && strcmp(argv[1], cases[i].name)) continue;
        printf("%s\n", cases[i].name);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            setpgid(0, 0);
            alarm(20);
            cases[i].run();
            say("work", work(100));
            exit(0);
        }
        await(child, 0);
    }
    return 0;
}
