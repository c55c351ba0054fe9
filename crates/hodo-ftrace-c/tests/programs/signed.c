// Functions that sign their return addresses (-mbranch-protection) have their entries and returns traced, whatever their
// frames are like; so have other functions between them.
#include "check.h"
#include <string.h>

static volatile long entries, exits, entry_hits;
static volatile unsigned long from;

HOOK static void entered(unsigned long frompc, unsigned long selfpc) { entry_hits++, from = frompc, (void)selfpc; }
HOOK static int graph_entered(struct hodo_ftrace_call *call) { return entries++, (void)call, 1; }
HOOK static void graph_left(struct hodo_ftrace_call *call) { exits++, (void)call; }

APART __attribute__((target("branch-protection=none"))) long unsigned_one(long a) {
    EFFECT;
    return a * 3;
}
APART __attribute__((target("branch-protection=pac-ret+leaf+b-key"))) long other_key(long a) {
    EFFECT;
    return unsigned_one(a) + 1;
}
APART long with_array(long a) {
    volatile char array[600];
    array[a] = 1;
    EFFECT;
    return other_key(a) + array[a];
}
APART long with_large_array(long a) {
    volatile char array[5000];
    array[a] = 1;
    EFFECT;
    return with_array(a) + array[a];
}
APART long with_huge_array(long a) {
    volatile char array[1000000];
    array[a] = 1;
    EFFECT;
    return with_large_array(a) + array[a];
}
APART long with_room_at_run_time(long a) {
    volatile char array[a * 100];
    array[a] = 1;
    EFFECT;
    return with_huge_array(a) + array[a];
}
APART long with_more_arguments(long a, ...) {
    __builtin_va_list list;
    __builtin_va_start(list, a);
    long result = with_room_at_run_time(a) + __builtin_va_arg(list, int);
    __builtin_va_end(list);
    EFFECT;
    return result;
}
APART long jumps_on(long a) {
    EFFECT;
    return with_more_arguments(a, 1);
}
APART long outer(long a) {
    volatile double x = a;
    long result = jumps_on(a) + (long)x;
    EFFECT;
    return result;
}
#ifdef LOOP
// The prologue of the function with the huge array has a loop (gcc's -fstack-clash-protection).
enum { UNTRACED = 100 };
#else
enum { UNTRACED = 0 };
#endif
enum { FUNCTIONS = 9, RESULT = 3 * 2 + 1 + 4 + 1 + 2 };

QUIET int main(void) {
    static const struct hodo_ftrace_entry_ops entry = {entered, HODO_FTRACE_VECTORS};
    static const struct hodo_ftrace_graph_ops graph = {graph_entered, graph_left, HODO_FTRACE_VECTORS};
    struct hodo_ftrace_counts counts;
    hodo_ftrace_set_graph(&graph);
    for (int i = 0; i < 100; i++) CHECK(outer(2) == RESULT);
    hodo_ftrace_counts(&counts);
    CHECK(entries == 100 * FUNCTIONS - UNTRACED && exits == entries);
    CHECK(counts.untraced == UNTRACED && counts.lost == 0);
    hodo_ftrace_set_graph(0);
    hodo_ftrace_set_entry(&entry);
    CHECK(other_key(2) == 7);
    hodo_ftrace_set_entry(0);
    CHECK(outer(2) == RESULT);
    // The hook gets addresses without their signature.
    CHECK(entry_hits == 2 && from - (unsigned long)other_key < 1024);
    puts("ok");
    return 0;
}
