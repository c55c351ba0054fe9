// Call sites that are changed again and again while threads execute them, and signals interrupt everything.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

// Each of these is a site; the sum is known.
#define FUNCTION(n)                                                                        \
    APART static unsigned long f##n(unsigned long a, unsigned long b) {                    \
        EFFECT;                                                                            \
        return a * (n + 2) + b;                                                            \
    }
FUNCTION(0) FUNCTION(1) FUNCTION(2) FUNCTION(3) FUNCTION(4) FUNCTION(5) FUNCTION(6) FUNCTION(7)

QUIET static unsigned long round_of(unsigned long a) {
    return f0(a, 1) + f1(a, 2) + f2(a, 3) + f3(a, 4) + f4(a, 5) + f5(a, 6) + f6(a, 7) + f7(a, 8);
}

static volatile int stop;
static unsigned long rounds[3];

QUIET static void *run(void *data) {
    unsigned long *count = data;
    for (unsigned long a = 1; !stop; a++) {
        if (round_of(a) != a * (2 + 3 + 4 + 5 + 6 + 7 + 8 + 9) + 36) {
            printf("the result is wrong\n");
            _exit(1);
        }
        ++*count;
    }
    return 0;
}

static volatile unsigned long signals;
QUIET static void on_signal(int number) {
    signals += round_of(1) == 44 + 36;
}

static unsigned long seen[3];
HOOK static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                     struct hodo_ftrace_registers *registers) {
    __atomic_fetch_add((unsigned long *)ops->data, 1, __ATOMIC_RELAXED);
}
static const struct hodo_ftrace_ops all[3] = {
    {see, FLAGS, &seen[0]}, {see, FLAGS, &seen[1]}, {see, FLAGS, &seen[2]}};

static unsigned long entries, exits;
HOOK static int enter(struct hodo_ftrace_call *call) {
    __atomic_fetch_add(&entries, 1, __ATOMIC_RELAXED);
    return 1;
}
HOOK static void leave(struct hodo_ftrace_call *call) {
    __atomic_fetch_add(&exits, 1, __ATOMIC_RELAXED);
}
static const struct hodo_ftrace_graph_ops graph = {enter, leave, FLAGS};

#ifndef TIMES
#define TIMES 60
#endif

QUIET static void toggle(void) {
    static const char *const names[] = {"f0", "f[1-3]", "f*", "f7"};
    for (int time = 0; time < TIMES; time++) {
        const struct hodo_ftrace_ops *ops = &all[time % 3];
        CHECK(hodo_ftrace_set_filter(ops, names[time % 4], 1) >= 1);
        if (time % 6 == 0)
            CHECK(hodo_ftrace_set_graph_filter(names[time / 6 % 4], 1) >= 1 && hodo_ftrace_set_graph(&graph) == 0);
        if (time % 6 == 4)
            CHECK(hodo_ftrace_set_graph(0) == 0);
        if (time % 4 == 3) {
            CHECK(hodo_ftrace_unregister(ops) == 0);
            CHECK(hodo_ftrace_set_filter(ops, "f5", 1) == 1);
            CHECK(hodo_ftrace_register(ops) == 0);
        }
    }
}

QUIET int main(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval timer = {{0, 500}, {0, 500}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, run, &rounds[i]);
    // On a busy machine, they may come late.
    for (int i = 0; i < 2; i++)
        while (__atomic_load_n(&rounds[i], __ATOMIC_RELAXED) == 0)
            usleep(1000);
    for (int i = 0; i < 3; i++) {
        CHECK(hodo_ftrace_set_filter(&all[i], "f1", 1) == 1);
        CHECK(hodo_ftrace_register(&all[i]) == 0);
    }
    setitimer(ITIMER_REAL, &timer, 0);
    toggle();

    // A child goes on alone.
    pid_t child = fork();
    if (child == 0) {
        stop = 0;
        unsigned long before = seen[0];
        CHECK(hodo_ftrace_set_filter(&all[0], "f2", 1) == 1);
        CHECK(round_of(1) == 44 + 36);
        CHECK(__atomic_load_n(&seen[0], __ATOMIC_RELAXED) > before);
        toggle();
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) != child)
        ;
    CHECK(status == 0);

    timer = (struct itimerval){{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &timer, 0);
    stop = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    CHECK(rounds[0] > 0 && rounds[1] > 0);
    for (int i = 0; i < 3; i++)
        CHECK(hodo_ftrace_unregister(&all[i]) == 0);
    CHECK(hodo_ftrace_set_graph(0) == 0);
    // Nobody is called any more.
    unsigned long before[5] = {seen[0], seen[1], seen[2], entries, exits};
    CHECK(round_of(1) == 44 + 36);
    unsigned long after[5] = {seen[0], seen[1], seen[2], entries, exits};
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK(seen[0] > 0 && seen[1] > 0 && seen[2] > 0 && entries > 0 && exits > 0);
    puts("ok");
    return 0;
}
