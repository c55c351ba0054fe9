// Two functions that are replaced together: a chain of calls must never see the old version of one and the new version of
// the other. The graph tracer and other tracers are switched meanwhile, and threads are created and end all the time.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static volatile int stop, exact;

APART static long inner(void) {
    EFFECT;
    return 1;
}
APART static long new_inner(void) {
    EFFECT;
    return 2;
}
static long (*volatile call_inner)(void) = inner;

// What the outer version is, times ten, and what all inner calls were, if they agree.
#define OUTER(name, version)                        \
    APART static long name(long rounds) {           \
        long first = call_inner();                  \
        for (long i = 1; i < rounds; i++)           \
            if (call_inner() != first)              \
                return -1;                          \
        EFFECT;                                     \
        return version * 10 + first;                \
    }
OUTER(outer, 1)
OUTER(new_outer, 2)
static long (*volatile call_outer)(long) = outer;

static const struct hodo_ftrace_patch_function functions[] = {
    {"outer", 0, (void *)new_outer}, {"inner", 0, (void *)new_inner}};
static const struct hodo_ftrace_patch patch = {functions, 2};

static unsigned long chains[2];

QUIET static void check_chain(long rounds) {
    long seen = call_outer(rounds);
    if (seen != 11 && seen != 22) {
        printf("a chain has seen %ld\n", seen);
        fflush(stdout);
        _exit(1);
    }
    // After the transition, all threads use the same versions.
    int now = exact;
    if (now != 0 && now == exact && seen != now) {
        // The chain may have begun before: what begins now has not.
        seen = call_outer(1);
        if (now == exact && seen != now) {
            printf("after the transition, a chain has seen %ld, not %d\n", seen, now);
            fflush(stdout);
            _exit(1);
        }
    }
    __atomic_fetch_add(&chains[seen == 22], 1, __ATOMIC_RELAXED);
}

QUIET static void *run(void *data) {
    while (!stop) {
        for (int i = 0; i < 100; i++)
            check_chain((long)data);
        // A thread that is inside nearly all the time is seldom found outside.
        usleep(100);
    }
    return 0;
}

QUIET static void *once(void *data) {
    check_chain(3);
    return 0;
}

static unsigned long threads;
QUIET static void *storm(void *data) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 1 << 17);
    while (!stop) {
        pthread_t some[4];
        for (int i = 0; i < 4; i++)
            CHECK(pthread_create(&some[i], &attributes, once, 0) == 0);
        for (int i = 0; i < 4; i++)
            pthread_join(some[i], 0);
        threads += 4;
    }
    return 0;
}

QUIET static void on_alarm(int number) {
    check_chain(2);
}

static unsigned long entries, returns;
HOOK static int enter(struct hodo_ftrace_call *call) {
    __atomic_fetch_add(&entries, 1, __ATOMIC_RELAXED);
    return 1;
}
HOOK static void leave(struct hodo_ftrace_call *call) {
    __atomic_fetch_add(&returns, 1, __ATOMIC_RELAXED);
}
static const struct hodo_ftrace_graph_ops graph = {enter, leave, FLAGS};

static unsigned long seen;
HOOK static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                     struct hodo_ftrace_registers *registers) {
    __atomic_fetch_add(&seen, 1, __ATOMIC_RELAXED);
}
static const struct hodo_ftrace_ops ops = {see, FLAGS, 0};

#ifndef TIMES
#define TIMES 4
#endif

QUIET int main(void) {
#ifndef FRAMED
    static char stack[1 << 16];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&other, 0);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigaction(SIGALRM, &action, 0);
    struct itimerval timer = {{0, 3000}, {0, 3000}};
    setitimer(ITIMER_REAL, &timer, 0);
    pthread_t all[3];
    CHECK(hodo_ftrace_set_filter(&ops, "*inner", 1) == 2);
    pthread_create(&all[0], 0, run, (void *)2);
    pthread_create(&all[1], 0, run, (void *)20);
    pthread_create(&all[2], 0, storm, 0);
    for (int time = 0; time < TIMES; time++) {
        if (time % 3 == 1)
            CHECK(hodo_ftrace_set_graph(&graph) == 0);
        CHECK(hodo_ftrace_livepatch_enable(&patch) == 0);
        CHECK(hodo_ftrace_livepatch_wait(&patch, 60000) == 1);
        CHECK(hodo_ftrace_livepatch_state(&patch) == HODO_FTRACE_PATCH_ON);
        exact = 22;
        // Other tracers of the same functions come and go: no call may miss the new version.
        for (int i = 0; i < 5; i++) {
            CHECK(hodo_ftrace_register(&ops) == 0);
            usleep(300);
            CHECK(hodo_ftrace_unregister(&ops) == 0 && hodo_ftrace_set_filter(&ops, "*inner", 1) == 2);
            if (i == 2)
                CHECK(hodo_ftrace_set_graph(time % 2 ? &graph : 0) == 0);
        }
        exact = 0;
        CHECK(hodo_ftrace_livepatch_disable(&patch) == 0);
        if (time % 4 == 3) {
            // Turned round, perhaps before it has ended.
            int again = hodo_ftrace_livepatch_enable(&patch);
            CHECK(again == 0 && hodo_ftrace_livepatch_wait(&patch, 60000) == 1);
            CHECK(hodo_ftrace_livepatch_disable(&patch) == 0);
        }
        CHECK(hodo_ftrace_livepatch_wait(&patch, 60000) == 1);
        CHECK(hodo_ftrace_livepatch_state(&patch) == HODO_FTRACE_PATCH_OFF);
        exact = 11;
        usleep(300);
        exact = 0;
        CHECK(hodo_ftrace_set_graph(0) == 0);
    }
    stop = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(all[i], 0);
    CHECK(chains[0] > 0 && chains[1] > 0 && threads > 0);
    CHECK(entries > 0 && returns > 0 && seen > 0);
#endif
    puts("ok");
    return 0;
}
