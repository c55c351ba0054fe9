// Call sites: off at first, then called as filters say.
#define _GNU_SOURCE
#include "check.h"
#include <string.h>

enum { THIRD = 101 };

APART int add(int a, int b) {
    EFFECT;
    return a + b;
}

APART int twice(int a) {
    EFFECT;
    int sum = add(a, a);
    EFFECT; // This is no tail call.
    return sum;
}

APART double half(double a, double b) {
    EFFECT;
    return a / 2 + b * 0;
}

QUIET static int calls(void) {
    return twice(20) == 40 && half(3, 1) == 1.5;
}

struct seen {
    int count;
    unsigned long ip, parent;
};
static struct seen seen[3];

HOOK static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                     struct hodo_ftrace_registers *registers) {
    struct seen *seen = ops->data;
    seen->count++;
    seen->ip = ip;
    seen->parent = parent;
    if (registers != 0)
        seen->count += 100;
}

static const struct hodo_ftrace_ops first = {see, FLAGS, &seen[0]};
static const struct hodo_ftrace_ops second = {see, FLAGS, &seen[1]};
static const struct hodo_ftrace_ops third = {see, FLAGS | HODO_FTRACE_SAVE_REGISTERS, &seen[2]};

QUIET static void reset(void) {
    memset(seen, 0, sizeof seen);
}

static int sites, enabled;
static unsigned long add_site;
QUIET static int each(const struct hodo_ftrace_site *site, void *data) {
    if (strcmp(site->name, "add") == 0)
        add_site = site->ip;
    sites += strcmp(site->name, "add") == 0 || strcmp(site->name, "twice") == 0 ||
             strcmp(site->name, "half") == 0;
    enabled += site->tracers;
    return 0;
}

static int entries, exits, listened;
HOOK static void entry(unsigned long frompc, unsigned long selfpc) {
    listened++;
}
HOOK static int enter(struct hodo_ftrace_call *call) {
    entries++;
    return 1;
}
HOOK static void leave(struct hodo_ftrace_call *call) {
    exits++;
}
static const struct hodo_ftrace_entry_ops entry_ops = {entry, FLAGS};
static const struct hodo_ftrace_graph_ops graph_ops = {enter, leave, FLAGS};

QUIET int main(void) {
    // All three have a site, and nobody wants to see it.
    CHECK(hodo_ftrace_each_site(each, 0) == 0);
    CHECK(sites == 3 && enabled == 0);
    CHECK(calls());

    // A filter that is there before its tracer.
    CHECK(hodo_ftrace_set_filter(&first, "ad?", 1) == 1);
    CHECK(hodo_ftrace_register(&first) == 0);
    CHECK(calls() && seen[0].count == 1);
    CHECK(seen[0].ip == add_site);
    CHECK(seen[0].parent > (unsigned long)twice && seen[0].parent < (unsigned long)twice + 100);
    CHECK(hodo_ftrace_set_filter(&first, "twice", 0) == 2);
    reset();
    CHECK(calls() && seen[0].count == 2);

    // Another one, for some of the same functions.
    CHECK(hodo_ftrace_set_filter(&second, "half", 1) == 1);
    CHECK(hodo_ftrace_set_filter(&second, "add", 0) == 2);
    CHECK(hodo_ftrace_register(&second) == 0);
    reset();
    CHECK(calls() && seen[0].count == 2 && seen[1].count == 2);

    // With registers.
    CHECK(hodo_ftrace_set_filter(&third, "add:mod:*dynamic*", 1) == 1);
    CHECK(hodo_ftrace_register(&third) == 0);
    reset();
    CHECK(calls() && seen[0].count == 2 && seen[1].count == 2 && seen[2].count == THIRD);
    CHECK(seen[0].ip == seen[2].ip || seen[1].ip == seen[2].ip);

    // The hooks that have no filter at first.
    CHECK(hodo_ftrace_set_entry_filter("twice", 1) == 1);
    CHECK(hodo_ftrace_set_entry(&entry_ops) == 0);
    CHECK(hodo_ftrace_set_graph_notrace("add", 1) >= 2);
    CHECK(hodo_ftrace_set_graph(&graph_ops) == 0);
    reset();
    CHECK(calls() && listened == 1 && entries == 2 && exits == 2);
    CHECK(seen[0].count == 2 && seen[1].count == 2 && seen[2].count == THIRD);
    CHECK(hodo_ftrace_set_graph(0) == 0 && hodo_ftrace_set_entry(0) == 0);

    // One after the other goes.
    CHECK(hodo_ftrace_unregister(&first) == 0);
    reset();
    CHECK(calls() && seen[0].count == 0 && seen[1].count == 2 && seen[2].count == THIRD);
    CHECK(hodo_ftrace_set_filter_ip(&second, add_site, 0, 1) == 1);
    CHECK(hodo_ftrace_unregister(&third) == (THIRD == 0 ? -1 : 0));
    reset();
    CHECK(calls() && seen[1].count == 1 && seen[2].count == 0 && seen[1].ip == add_site);
    CHECK(hodo_ftrace_unregister(&second) == 0);
    reset();
    listened = entries = exits = 0;
    CHECK(calls() && seen[1].count == 0 && listened == 0 && entries == 0);
    enabled = 0;
    CHECK(hodo_ftrace_each_site(each, 0) == 0 && enabled == 0);

    // Wrong use.
    CHECK(hodo_ftrace_unregister(&second) == -1);
    CHECK(strcmp(hodo_ftrace_error(), "the tracer is not registered") == 0);
    CHECK(hodo_ftrace_register(0) == -1);
    CHECK(hodo_ftrace_set_filter_ip(&first, add_site + 1, 0, 1) == -1);
    CHECK(strstr(hodo_ftrace_error(), "is not the address of a call site") != 0);
    CHECK(hodo_ftrace_set_filter(&first, "a[", 1) == -1);
    CHECK(strstr(hodo_ftrace_error(), "the pattern 'a[' is wrong") != 0);
    puts("ok");
    return 0;
}
