// A signal handler on a stack above the interrupted one makes open calls look gone. They return to the right place, and
// are counted.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <signal.h>

static volatile long exits;
static char *above;

QUIET static void left(struct hodo_ftrace_call *call) { exits++, (void)call; }

APART long inner(long a) {
    EFFECT;
    return a * 3;
}
QUIET static void handler(int signal) { (void)signal, inner(2); }
APART long outer(long a) {
    raise(SIGUSR1);
    EFFECT;
    return inner(a) + 1;
}

QUIET static void *thread(void *argument) {
    stack_t stack = {.ss_sp = above, .ss_size = 1 << 16};
    CHECK((char *)&stack < above && sigaltstack(&stack, 0) == 0);
    CHECK(outer(1) == 4);
    struct hodo_ftrace_counts counts;
    hodo_ftrace_counts(&counts);
    // Both calls of the inner one.
    CHECK(exits == 2 && counts.lost == 1 && counts.dropped == 1);
    CHECK(outer(1) == 4);
    return argument;
}

QUIET int main(void) {
    // In the frame of `main`, whose stack is above those of threads.
    char space[1 << 16];
    above = space;
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &action, 0) == 0);
    static const struct hodo_ftrace_graph_ops ops = {0, left, HODO_FTRACE_VECTORS};
    hodo_ftrace_set_graph(&ops);
    pthread_t other;
    CHECK(pthread_create(&other, 0, thread, 0) == 0 && pthread_join(other, 0) == 0);
    hodo_ftrace_set_graph(0);
    puts("ok");
    return 0;
}
