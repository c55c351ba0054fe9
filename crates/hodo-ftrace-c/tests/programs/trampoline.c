// A function whose calls go through a trampoline, for debuggers.
#include "check.h"

APART static int traced(int a) {
    EFFECT;
    return a + 1;
}

APART QUIET static int outer(int a) {
    int result = traced(a);
    EFFECT; // This is no tail call.
    return result + 1;
}

static int seen;
HOOK static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                     struct hodo_ftrace_registers *registers) {
    seen++;
}
static const struct hodo_ftrace_ops tracer = {see, FLAGS, 0};

// Here, the tracer is there.
APART QUIET static void ready(void) {
    EFFECT;
}

QUIET int main(void) {
    CHECK(hodo_ftrace_set_filter(&tracer, "traced", 1) == 1);
    CHECK(hodo_ftrace_register(&tracer) == 0);
    ready();
    CHECK(outer(5) == 7 && seen == 1);
    puts("ok");
    return 0;
}
