// Probes at call sites: they are called by the function tracer, and see what a probe sees anywhere.
#include "probed.h"

APART long twice(long a) {
    EFFECT;
    return a * 2;
}
APART long other(long a) {
    EFFECT;
    return a + 7;
}
static long (*volatile call_twice)(long) = twice;
static long (*volatile call_other)(long) = other;

static unsigned long seen_pc, after_pc;
static long seen_argument, seen_result, hits;
QUIET static void before(hodo_registers *registers, void *data) {
    hits++;
    seen_pc = registers->pc;
    seen_argument = registers->ARGUMENT;
    if (data)
        registers->ARGUMENT += *(long *)data;
}
QUIET static void after(hodo_registers *registers, void *data) { after_pc = registers->pc; }
QUIET static void returning(hodo_registers *registers, void *data) {
    seen_result = registers->RESULT;
    registers->RESULT += 1000;
}
QUIET static void at_once(hodo_registers *registers, void *data) { hodo_probe_return_now(registers, 99); }
QUIET static void elsewhere(hodo_registers *registers, void *data) { registers->pc = (unsigned long)other; }

static unsigned long traced;
HOOK static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                     struct hodo_ftrace_registers *registers) {
    __atomic_fetch_add(&traced, 1, __ATOMIC_RELAXED);
}
static const struct hodo_ftrace_ops tracer = {see, FLAGS};
static unsigned long exits;
HOOK static int enter(struct hodo_ftrace_call *call) { return 1; }
HOOK static void leave(struct hodo_ftrace_call *call) { exits++; }
static const struct hodo_ftrace_graph_ops graph = {enter, leave, FLAGS};

// The list of probes has this line.
static char expected[100];
static int is_listed;
QUIET static void look(const char *line, void *data) { is_listed += strcmp(line, expected) == 0; }
QUIET static int lists(unsigned long address, const char *rest) {
    snprintf(expected, sizeof expected, "%016lx  %s", address, rest);
    is_listed = 0;
    CHECK(hodo_probe_list(look, 0) >= 0);
    return is_listed;
}

// Probes at the site of a function that has done nothing yet.
QUIET static void at_entry(struct hodo_ftrace_reserved_code site) {
    hodo_request request = at(twice, (unsigned long)twice);
    // The function's entry is the site, also if `endbr64` is there.
    request.before = before;
    request.returning = returning;
    hodo_probe *probe = put(request);
    CHECK(hodo_probe_execution(probe) == HODO_CALL_SITE);
    CHECK(lists(site.start, "k  [FTRACE]") == 1 && lists(site.start, "r  [FTRACE]") == 1);
    for (int graphs = 0; graphs < 2; graphs++) {
        CHECK(hodo_ftrace_set_graph_filter("twice", 1) == 1 && hodo_ftrace_set_graph(graphs ? &graph : 0) == 0);
        hits = exits = 0;
        CHECK(call_twice(4) == 1008 && seen_argument == 4 && seen_result == 8);
        CHECK(hits == 1 && seen_pc == site.start && exits == (unsigned)graphs);
    }
    CHECK(hodo_ftrace_set_graph(0) == 0);
    CHECK(hodo_probe_missed_returns(probe) == 0 && take(probe) == 0);

    request = at(twice, site.start);
    request.before = at_once;
    probe = put(request);
    CHECK(call_twice(4) == 99 && call_other(1) == 8);
    CHECK(take(probe) == 0);
    request.before = elsewhere;
    probe = put(request);
    CHECK(call_twice(4) == 11);
    CHECK(take(probe) == 0 && call_twice(4) == 8);
}

QUIET static void refusals(struct hodo_ftrace_reserved_code site) {
    hodo_request request = at(twice, site.start + 1);
    request.before = before;
    CHECK(!hodo_probe_register(&request, error, sizeof error));
    CHECK(strstr(error, "it is in the call site of ftrace at ") && strstr(error, "put the probe at its first byte"));
    request = at(twice, site.start);
    request.before = before;
    request.execution = HODO_OUT_OF_LINE;
    CHECK(!hodo_probe_register(&request, error, sizeof error));
    request = at(twice, site.end);
    request.before = before;
    request.execution = HODO_CALL_SITE;
    CHECK(!hodo_probe_register(&request, error, sizeof error));
    CHECK(strstr(error, "by the function tracer whose call site it is"));
}

QUIET int main(void) {
    struct hodo_ftrace_reserved_code site = site_of("twice");
    hodo_request request = at(twice, site.start);
    request.before = before;
    request.after = after;
    if (!(site.flags & HODO_FTRACE_HAS_REGISTERS)) {
        CHECK(!hodo_probe_register(&request, error, sizeof error));
        CHECK(strstr(error, "gives no registers"));
#ifndef __x86_64__
        // Compilers have this option for x86 only.
        CHECK(!strstr(error, "-mfentry"));
#endif
    } else {
        refusals(site);
        long more = 10;
        request.data = &more;
        hodo_probe *probe = put(request);
        CHECK(hodo_probe_execution(probe) == HODO_CALL_SITE);
#ifdef FRAMED
        // The argument may be anywhere.
        more = 0;
        CHECK(call_twice(4) == 8);
#else
        CHECK(call_twice(4) == 28 && seen_argument == 4);
#endif
        CHECK(hits == 1 && seen_pc == site.start && after_pc == site.end);

        // Together with others.
        CHECK(hodo_ftrace_set_filter(&tracer, "twice", 1) == 1 && hodo_ftrace_register(&tracer) == 0);
        call_twice(4);
        CHECK(hits == 2 && traced == 1);
        hodo_request second = at(twice, site.start);
        second.count = 1;
        hodo_probe *counter = put(second);
        call_twice(4);
        CHECK(hits == 3 && traced == 2 && hodo_probe_count(counter) == 1);
        hodo_probe *one[] = {probe};
        CHECK(hodo_probe_set_enabled(one, 1, 0) == 0);
        call_twice(4);
        CHECK(hits == 3 && traced == 3 && hodo_probe_count(counter) == 2);
        CHECK(lists(site.start, "k  [FTRACE]") == 1 && lists(site.start, "k  [DISABLED]  [FTRACE]") == 1);
        CHECK(take(probe) == 0 && take(counter) == 0);
        call_twice(4);
        CHECK(hits == 3 && traced == 4 && hodo_ftrace_unregister(&tracer) == 0);
        call_twice(4);
        CHECK(hits == 3 && traced == 4);
        if (site.flags & HODO_FTRACE_IS_FIRST)
            at_entry(site);
    }
    hits = 0;

    // Probes around it leave it alone.
    unsigned long places[] = {(unsigned long)twice, site.end};
    for (int i = 0; i < 2; i++) {
        request = at(twice, places[i]);
        request.before = before;
        hodo_probe *probe = put(request);
        CHECK(hodo_ftrace_set_filter(&tracer, "twice", 1) == 1 && hodo_ftrace_register(&tracer) == 0);
        traced = hits = 0;
        CHECK(call_twice(4) == 8 && hits == 1 && traced == 1);
        CHECK(hodo_ftrace_unregister(&tracer) == 0);
        CHECK(call_twice(4) == 8 && hits == 2 && traced == 1);
        CHECK(hodo_ftrace_register(&tracer) == 0 && take(probe) == 0);
        CHECK(call_twice(4) == 8 && hits == 2);
        CHECK(hodo_ftrace_unregister(&tracer) == 0);
        CHECK(call_twice(4) == 8 && hits == 2);
    }
    check_code();
    puts("ok");
    return 0;
}
