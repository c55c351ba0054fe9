// Call sites are switched by one thread, probed by another, and executed by others. No hit is lost.
#include "probed.h"
#include <pthread.h>

#define FUNCTION(n)                                                                        \
    APART unsigned long f##n(unsigned long a, unsigned long b) {                           \
        EFFECT;                                                                            \
        return a * (n + 2) + b;                                                            \
    }
FUNCTION(0) FUNCTION(1) FUNCTION(2) FUNCTION(3)
static unsigned long (*volatile calls[4])(unsigned long, unsigned long) = {f0, f1, f2, f3};

#ifndef TIMES
#define TIMES 200
#endif

static volatile int stop;
static unsigned long rounds[4];
QUIET static unsigned long round_of(unsigned long a) {
    return calls[0](a, 1) + calls[1](a, 2) + calls[2](a, 3) + calls[3](a, 4);
}
QUIET static void *run(void *data) {
    unsigned long *count = data;
    for (unsigned long a = 1; !stop; a++) {
        CHECK(round_of(a) == a * 14 + 10);
        ++*count;
    }
    return 0;
}

HOOK static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                     struct hodo_ftrace_registers *registers) {
    __atomic_fetch_add((unsigned long *)ops->data, 1, __ATOMIC_RELAXED);
}
static unsigned long traced[2];
static const struct hodo_ftrace_ops tracers[2] = {{see, FLAGS, &traced[0]}, {see, FLAGS, &traced[1]}};
static unsigned long entries, exits;
HOOK static int enter(struct hodo_ftrace_call *call) {
    __atomic_fetch_add(&entries, 1, __ATOMIC_RELAXED);
    return 1;
}
HOOK static void leave(struct hodo_ftrace_call *call) { __atomic_fetch_add(&exits, 1, __ATOMIC_RELAXED); }
static const struct hodo_ftrace_graph_ops graph = {enter, leave, FLAGS};

// Switches the sites: each time, a tracer comes or goes.
QUIET static void *toggle(void *data) {
    static const char *const names[] = {"f0", "f[1-3]", "f*", "f3"};
    for (unsigned long time = 0; !stop || time < TIMES; time++) {
        const struct hodo_ftrace_ops *ops = &tracers[time % 2];
        CHECK(hodo_ftrace_set_filter(ops, names[time % 4], 1) >= 1);
        if (time / 2 % 2 == 0)
            CHECK(hodo_ftrace_register(ops) == 0);
        else
            CHECK(hodo_ftrace_unregister(ops) == 0);
        if (time % 16 == 0)
            CHECK(hodo_ftrace_set_graph_filter(names[time / 16 % 4], 1) >= 1 && hodo_ftrace_set_graph(&graph) == 0);
        if (time % 16 == 8)
            CHECK(hodo_ftrace_set_graph(0) == 0);
        // Each of them sees something, however the threads are scheduled.
        CHECK(round_of(time) == time * 14 + 10);
        rounds[3]++;
        ++*(unsigned long *)data;
    }
    for (int i = 0; i < 2; i++)
        hodo_ftrace_unregister(&tracers[i]);
    CHECK(hodo_ftrace_set_graph(0) == 0);
    return 0;
}

// Hits of the thread that puts and removes the probes, and returns.
static _Thread_local unsigned long mine, returned;
QUIET static void before(hodo_registers *registers, void *data) { mine++; }
QUIET static void returning(hodo_registers *registers, void *data) { returned++; }

QUIET int main(void) {
    unsigned long sites[4];
    const char *const names[] = {"f0", "f1", "f2", "f3"};
    int is_first = 0, has_registers = 0;
    for (int i = 0; i < 4; i++) {
        struct hodo_ftrace_reserved_code site = site_of(names[i]);
        has_registers = site.flags & HODO_FTRACE_HAS_REGISTERS;
        is_first = site.flags & HODO_FTRACE_IS_FIRST;
        // Where there can be no probe at the site, there is one after it.
        sites[i] = has_registers ? site.start : site.end;
    }
    // One stays at a function that all threads call.
    hodo_request all = at(f2, sites[2]);
    all.count = 1;
    hodo_probe *always = put(all);

    pthread_t threads[3];
    unsigned long toggled = 0;
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, run, &rounds[i]);
    pthread_create(&threads[2], 0, toggle, &toggled);
    for (unsigned long time = 0; time < TIMES; time++) {
        int which = time % 4;
        hodo_request request = at(calls[which], sites[which]);
        request.before = before;
        if (is_first && has_registers && time % 3 == 0)
            request.returning = returning;
        hodo_probe *probe = put(request);
        unsigned long hits = mine, returns = returned;
        for (unsigned long a = 0; a < 10; a++, rounds[2]++)
            CHECK(round_of(a) == a * 14 + 10);
        if (mine != hits + 10 || hodo_probe_missed(probe) != 0)
            printf("%lu hits, %lu missed\n", mine - hits, (unsigned long)hodo_probe_missed(probe));
        CHECK(mine == hits + 10 && hodo_probe_missed(probe) == 0);
        CHECK(returned == returns + (request.returning ? 10 : 0));
        CHECK(take(probe) == 0);
        CHECK(round_of(1) == 24 && mine == hits + 10);
        rounds[2]++;
    }
    stop = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
    unsigned long count = hodo_probe_count(always), expected = rounds[0] + rounds[1] + rounds[2] + rounds[3];
    if (count != expected)
        printf("%lu hits of %lu\n", count, expected);
    CHECK(count == expected && hodo_probe_missed(always) == 0);
    CHECK(toggled >= TIMES);
    CHECK(take(always) == 0);
    unsigned long before_end[4] = {traced[0], traced[1], entries, mine};
    CHECK(round_of(1) == 24);
    unsigned long after_end[4] = {traced[0], traced[1], entries, mine};
    CHECK(memcmp(before_end, after_end, sizeof before_end) == 0 && traced[0] > 0 && traced[1] > 0 && entries > 0 && exits > 0);
    check_code();
    puts("ok");
    return 0;
}
