// The cost of a call of a small function, in nanoseconds of CPU time: the least of ROUNDS rounds. With HOOKS, each kind of
// hook of hodo-ftrace in turn; otherwise only a call as it is. Each line: a name and a number.
// With the arguments MODE and CALLS, only makes these calls in this mode, for ftrace-instructions.sh.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#ifdef HOOKS
#include <hodo-ftrace.h>
#endif

#ifdef XRAY
// Its header, xray/xray_interface.h, is for C++.
int __xray_patch(void);
enum { SUCCESS = 1 };
#define QUIET __attribute__((no_instrument_function, xray_never_instrument))
#else
#define QUIET __attribute__((no_instrument_function, patchable_function_entry(0)))
#endif
enum { CALLS = 10000, ROUNDS = 3000 };

#ifndef __clang__
__attribute__((noclone))
#endif
__attribute__((noinline)) long work(long a) {
    __asm__ volatile("" : "+r"(a));
    return a + 1;
}

QUIET static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

QUIET static void measure(const char *name) {
    double least = 1e18;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        long sum = 0;
        for (int i = 0; i < CALLS; i++) sum = work(sum);
        double end = now();
        if (sum != CALLS) exit(1);
        if (end - start < least) least = end - start;
    }
    printf("%s\t%.2f\n", name, least / CALLS);
}

#ifdef HOOKS
static unsigned long hits;
QUIET static void entered(unsigned long from, unsigned long self) { hits++, (void)from, (void)self; }
static double sum_of_halves;
// Its code is read: it uses ordinary floating-point registers.
QUIET static void entered_floating(unsigned long from, unsigned long self) { hits++, sum_of_halves += 0.5, (void)from, (void)self; }
QUIET static int graph_entered(struct hodo_ftrace_call *call) { return hits++, (void)call, 1; }
QUIET static void graph_left(struct hodo_ftrace_call *call) { hits++, (void)call; }
static const struct hodo_ftrace_entry_ops entry[] = {{entered, 0}, {entered, HODO_FTRACE_VECTORS}, {entered_floating, 0}};
static const struct hodo_ftrace_graph_ops graph[] = {{graph_entered, graph_left, 0}, {graph_entered, graph_left, HODO_FTRACE_VECTORS}};
#endif

QUIET static int only(int mode, int calls) {
#ifdef HOOKS
    if (mode == 1) hodo_ftrace_set_entry(&entry[0]);
    if (mode == 2) hodo_ftrace_set_graph(&graph[0]);
    // The first call prepares memory.
    work(0);
#else
    (void)mode;
#endif
    long sum = 0;
    for (int i = 0; i < calls; i++) sum = work(sum);
    return sum != calls;
}

QUIET int main(int count, char **arguments) {
    if (count == 3) return only(atoi(arguments[1]), atoi(arguments[2]));
#ifdef HOOKS
    measure("nobody listens");
    hodo_ftrace_set_entry(&entry[0]);
    measure("entry hook");
    hodo_ftrace_set_entry(&entry[1]);
    measure("entry hook, vectors kept");
    hodo_ftrace_set_entry(&entry[2]);
    measure("entry hook with floating point");
    hodo_ftrace_set_entry(0);
    hodo_ftrace_set_graph(&graph[0]);
    measure("entry and return hooks");
    hodo_ftrace_set_graph(&graph[1]);
    measure("entry and return hooks, vectors kept");
    hodo_ftrace_set_graph(0);
    if (hits < 7ul * CALLS * ROUNDS) return 1;
#elif defined(XRAY)
    measure("unpatched");
    if (__xray_patch() != SUCCESS) return 1;
    measure("patched, no handler");
#else
    measure("call");
#endif
    return 0;
}
