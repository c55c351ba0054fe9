// More combinations of tracers than a file has trampolines: 512 functions, and nine tracers that see half of them each.
#include "check.h"
#include <string.h>

enum { TRACERS = 9, FUNCTIONS = 1 << TRACERS };

// The digits in a function's name say which tracers see it.
#define F1(name) F0(name##0) F0(name##1)
#define F2(name) F1(name##0) F1(name##1)
#define F3(name) F2(name##0) F2(name##1)
#define F4(name) F3(name##0) F3(name##1)
#define F5(name) F4(name##0) F4(name##1)
#define F6(name) F5(name##0) F5(name##1)
#define F7(name) F6(name##0) F6(name##1)
#define F8(name) F7(name##0) F7(name##1)
#define F9(name) F8(name##0) F8(name##1)

#define F0(name)                                                                           \
    APART static long name(long a) {                                                       \
        EFFECT;                                                                            \
        return a + 1;                                                                      \
    }
F9(f)
#undef F0
#define F0(name) name,
static long (*volatile functions[FUNCTIONS])(long) = {F9(f)};

static unsigned seen, wrong;
HOOK static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                     struct hodo_ftrace_registers *registers) {
    seen |= (unsigned)(unsigned long)ops->data;
    wrong += (ops->flags & HODO_FTRACE_SAVE_REGISTERS) != 0 && registers == 0;
}

enum { REGISTERS = HODO_FTRACE_SAVE_REGISTERS };
// The first digit is the first one's. Two are given registers.
#define TRACER(number, flags) {see, FLAGS | (flags), (void *)(1ul << (TRACERS - 1 - (number)))}
static const struct hodo_ftrace_ops tracers[TRACERS] = {
    TRACER(0, 0), TRACER(1, 0), TRACER(2, REGISTERS), TRACER(3, 0), TRACER(4, 0),
    TRACER(5, 0), TRACER(6, 0), TRACER(7, REGISTERS), TRACER(8, 0)};

static int entries, exits;
HOOK static int enter(struct hodo_ftrace_call *call) {
    entries++;
    return 1;
}
HOOK static void leave(struct hodo_ftrace_call *call) {
    exits++;
}
static const struct hodo_ftrace_graph_ops graph = {enter, leave, FLAGS};

// Calls all functions. Each is seen by those of these tracers that want to see it.
QUIET static void check(unsigned registered) {
    for (unsigned number = 0; number < FUNCTIONS; number++) {
        seen = 0;
        CHECK(functions[number](number) == number + 1);
        CHECK(seen == (number & registered) && wrong == 0);
    }
}

QUIET static void add(int number) {
    CHECK(hodo_ftrace_register(&tracers[number]) == 0);
}

QUIET int main(void) {
    for (int number = 0; number < TRACERS; number++) {
        char pattern[] = "f?????????";
        pattern[1 + number] = '1';
        CHECK(hodo_ftrace_set_filter(&tracers[number], pattern, 1) == FUNCTIONS / 2);
    }
    unsigned registered = 0;
    for (int number = 0; number < TRACERS; number++) {
        add(number);
        registered |= 1u << (TRACERS - 1 - number);
        check(registered);
    }
    // All have another combination now.
    CHECK(hodo_ftrace_set_graph_filter("f?????????", 1) == FUNCTIONS);
    CHECK(hodo_ftrace_set_graph(&graph) == 0);
    check(registered);
    CHECK(entries == FUNCTIONS && exits == FUNCTIONS);
    // They go in another order.
    for (int number = 0; number < TRACERS; number += 2) {
        CHECK(hodo_ftrace_unregister(&tracers[number]) == 0);
        registered &= ~(1u << (TRACERS - 1 - number));
        check(registered);
    }
    CHECK(hodo_ftrace_set_graph(0) == 0);
    check(registered);
    for (int number = 1; number < TRACERS; number += 2)
        CHECK(hodo_ftrace_unregister(&tracers[number]) == 0);
    check(0);
    puts("ok");
    return 0;
}
