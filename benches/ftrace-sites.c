// Call sites: what one costs while it is off and while tracers see it, and how long it takes to switch many while a thread
// executes them. Each line: a name and a number; nanoseconds of CPU time, or milliseconds.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#ifdef HOOKS
#include <hodo-ftrace.h>
#endif

#define QUIET __attribute__((no_instrument_function, patchable_function_entry(0)))
enum { CALLS = 2000000, ROUNDS = 15, SWITCHES = 15 };

__attribute__((noinline, noclone)) long work(long a) {
    __asm__ volatile("" : "+r"(a));
    return a + 1;
}

QUIET static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

QUIET static void measure(const char *name) {
    double least = 1e18;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now(CLOCK_THREAD_CPUTIME_ID);
        long sum = 0;
        for (int i = 0; i < CALLS; i++) sum = work(sum);
        double end = now(CLOCK_THREAD_CPUTIME_ID);
        if (sum != CALLS) exit(1);
        if (end - start < least) least = end - start;
    }
    printf("ns\t%s\t%.2f\n", name, least / CALLS);
}

#ifdef HOOKS
static unsigned long hits;
QUIET static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                      struct hodo_ftrace_registers *registers) {
    hits++, (void)ip, (void)parent, (void)ops, (void)registers;
}
QUIET static int entered(struct hodo_ftrace_call *call) { return hits++, (void)call, 1; }
QUIET static void left(struct hodo_ftrace_call *call) { hits++, (void)call; }
static const struct hodo_ftrace_ops first = {see, 0, 0}, second = {see, 0, 0}, other = {see, 0, 0},
                                    registers = {see, HODO_FTRACE_SAVE_REGISTERS, 0}, many = {see, 0, 0};
static const struct hodo_ftrace_graph_ops graph = {entered, left, 0};

// Thousands of functions, in another file.
extern long (*const functions[])(long);
extern const int count;
static volatile int stop;
QUIET static void *run(void *data) {
    long sum = 0;
    while (!stop)
        for (int i = 0; i < count && !stop; i++) sum = functions[i](sum);
    return data;
}

QUIET static void must(long result) {
    if (result < 0) fprintf(stderr, "%s\n", hodo_ftrace_error()), exit(1);
}

// The least time that a switch takes.
QUIET static void time_switch(const char *name, const char *on, const char *off) {
    double least[2] = {1e18, 1e18};
    for (int i = 0; i < 2 * SWITCHES; i++) {
        double start = now(CLOCK_MONOTONIC);
        must(hodo_ftrace_set_filter(&many, i % 2 ? off : on, 1));
        double time = now(CLOCK_MONOTONIC) - start;
        if (time < least[i % 2]) least[i % 2] = time;
    }
    printf("ms\t%s: on\t%.2f\nms\t%s: off\t%.2f\n", name, least[0] / 1e6, name, least[1] / 1e6);
}

QUIET static void sites(void) {
    measure("site off");
    must(hodo_ftrace_set_filter(&other, "main", 1)), must(hodo_ftrace_register(&other));
    measure("site off, a tracer sees other functions");
    must(hodo_ftrace_set_filter(&first, "work", 1)), must(hodo_ftrace_register(&first));
    measure("one tracer");
    must(hodo_ftrace_set_filter(&second, "work", 1)), must(hodo_ftrace_register(&second));
    measure("two tracers");
    must(hodo_ftrace_unregister(&first)), must(hodo_ftrace_unregister(&second));
    must(hodo_ftrace_set_filter(&registers, "work", 1));
    if (hodo_ftrace_register(&registers) == 0) {
        measure("one tracer, registers given");
        must(hodo_ftrace_unregister(&registers));
    }
    must(hodo_ftrace_set_graph_filter("work", 1)), must(hodo_ftrace_set_graph(&graph));
    measure("entry and return hooks");
    must(hodo_ftrace_set_graph(0));
    must(hodo_ftrace_unregister(&other));
    if (hits == 0) exit(1);

    pthread_t thread;
    pthread_create(&thread, 0, run, 0);
    must(hodo_ftrace_set_filter(&many, "main", 1)), must(hodo_ftrace_register(&many));
    char name[100];
    snprintf(name, sizeof name, "%d sites, a thread runs", count);
    time_switch(name, "many_*", "main");
    time_switch("1 site, a thread runs", "many_1", "main");
    stop = 1;
    pthread_join(thread, 0);
}
#endif

QUIET int main(void) {
#ifdef HOOKS
    sites();
#else
    measure("plain call");
#endif
    return 0;
}
