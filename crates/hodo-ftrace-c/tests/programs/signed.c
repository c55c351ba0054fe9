// Functions that sign their return addresses (-mbranch-protection) have their entries traced, and return as they are. Other
// functions between them are traced as usual, and so are all on processors that do not sign.
#include "check.h"
#include <asm/hwcap.h>
#include <sys/auxv.h>

#ifdef MIXED
enum { UNSIGNED = 1 };
#else
enum { UNSIGNED = 0 };
#endif

static volatile long entries, exits, entry_hits;
static volatile unsigned long from;

HOOK static void entered(unsigned long frompc, unsigned long selfpc) { entry_hits++, from = frompc, (void)selfpc; }
HOOK static int graph_entered(struct hodo_ftrace_call *call) { return entries++, (void)call, 1; }
HOOK static void graph_left(struct hodo_ftrace_call *call) { exits++, (void)call; }

APART __attribute__((target("branch-protection=none"))) long unsigned_one(long a) {
    EFFECT;
    return a * 3;
}
APART long inner(long a) {
    EFFECT;
#ifdef MIXED
    return unsigned_one(a) + 1;
#else
    return a * 3 + 1;
#endif
}
APART long outer(long a) {
    long result = inner(a) + 1;
    EFFECT;
    return result;
}

QUIET int main(void) {
    static const struct hodo_ftrace_entry_ops entry = {entered, HODO_FTRACE_VECTORS};
    static const struct hodo_ftrace_graph_ops graph = {graph_entered, graph_left, HODO_FTRACE_VECTORS};
    struct hodo_ftrace_counts counts;
    hodo_ftrace_set_graph(&graph);
    CHECK(outer(2) == 8);
    hodo_ftrace_counts(&counts);
    // Two functions sign.
    int signs = (getauxval(AT_HWCAP) & HWCAP_PACA) != 0, unsigned_calls = UNSIGNED + (signs ? 0 : 2);
    CHECK(entries == unsigned_calls && exits == unsigned_calls);
    CHECK(counts.untraced == (signs ? 2 : 0) && counts.lost == 0);
    hodo_ftrace_set_graph(0);
    hodo_ftrace_set_entry(&entry);
    CHECK(inner(2) == 7);
    hodo_ftrace_set_entry(0);
    // The hook gets the address without its signature.
    CHECK(entry_hits == 1 + UNSIGNED);
    if (!UNSIGNED) CHECK(from - (unsigned long)main < 1024);
    puts("ok");
    return 0;
}
