// With HODO_FTRACE_OFF, nothing is called, and those who want it are told.
#include "check.h"
#include <string.h>

static int hits;
APART int work(int a) {
    EFFECT;
    return a + 1;
}
QUIET static void entered(unsigned long from, unsigned long self) { hits++, (void)from, (void)self; }
QUIET static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                      struct hodo_ftrace_registers *registers) {
    hits++, (void)ip, (void)parent, (void)ops, (void)registers;
}
static const struct hodo_ftrace_entry_ops entry = {entered, 0};
static const struct hodo_ftrace_ops tracer = {see, 0, 0};

QUIET int main(void) {
    CHECK(hodo_ftrace_set_entry(&entry) == -1 && strstr(hodo_ftrace_error(), "HODO_FTRACE_OFF"));
    CHECK(hodo_ftrace_register(&tracer) == -1 && strstr(hodo_ftrace_error(), "HODO_FTRACE_OFF"));
    CHECK(hodo_ftrace_update() == 0);
    CHECK(work(1) == 2 && hits == 0);
    puts("ok");
    return 0;
}
