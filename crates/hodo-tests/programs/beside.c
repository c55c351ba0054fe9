/* A child made by clone that has its maker's memory and its thread pointer, while the maker goes on; with an argument, another one
   that is a thread. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define FUNCTION __attribute__((noipa))

static volatile long sums[2];
static volatile int ended;

FUNCTION void before(long n) { sums[0] += n; }
FUNCTION void in_child(long n) { sums[1] += n; }
FUNCTION void beside(long n) { sums[0] += n; }
FUNCTION void after(long n) { sums[0] += n; }

static int child(void *nothing) {
    for (long n = 0; n < 20000; n++)
        in_child(n);
    ended = 1;
    return 7;
}

int main(int argc, char **argv) {
    const int process = CLONE_VM | SIGCHLD;
    const int thread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    char *stack = malloc(1 << 20);
    int status = 0;
    for (long n = 0; n < 10; n++)
        before(n);
    int tid = clone(child, stack + (1 << 20), argc > 1 ? thread : process, NULL);
    if (tid < 0)
        return 1;
    for (long n = 0; n < 20000; n++)
        beside(n);
    if (argc > 1) {
        while (!ended)
            usleep(1000);
        /* It has ended when it can be told no signal. */
        while (tgkill(getpid(), tid, 0) == 0)
            usleep(1000);
    } else {
        waitpid(tid, &status, 0);
    }
    /* Who watches may be slower. */
    usleep(200000);
    for (long n = 0; n < 30; n++)
        after(n);
    printf("%ld %ld %d\n", sums[0], sums[1], WEXITSTATUS(status));
    return 5;
}
