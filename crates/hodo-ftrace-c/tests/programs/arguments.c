// Tracers see the arguments of functions that were built with -pg. On RISC-V and AArch64, the first one is not among them:
// gcc needs its register for the call.
#include "check.h"
#include <string.h>

APART long work(long a, long b, long c, double d, long e) {
    EFFECT;
    return a + b * c + (long)d - e;
}

static int hits;
HOOK static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                     struct hodo_ftrace_registers *registers) {
    hits++;
#if defined(__x86_64__)
    CHECK(registers->rdi == 1 && registers->rsi == 20 && registers->rdx == 300 && registers->rcx == 5);
    CHECK(registers->ip > ip);
#elif defined(__riscv)
    CHECK(registers->x[11] == 20 && registers->x[12] == 300 && registers->x[13] == 5);
    CHECK(registers->x[10] == parent && registers->x[0] == 0);
    CHECK(registers->ip > ip && registers->ip < ip + 9);
    // The frame pointer leads to the stack pointer at the entry.
    CHECK(registers->x[8] > registers->x[2] && ((unsigned long *)registers->x[8])[-1] == parent);
#else
    CHECK(registers->x[1] == 20 && registers->x[2] == 300 && registers->x[3] == 5);
    CHECK(registers->x[0] == parent);
    CHECK(registers->ip == ip + 4 && registers->x[30] == registers->ip);
    // The frame pointer leads to the frame record.
    CHECK(registers->x[29] >= registers->sp && (((unsigned long *)registers->x[29])[1] & 0xFFFFFFFFFFFF) == parent);
#endif
}
static const struct hodo_ftrace_ops tracer = {see, FLAGS | HODO_FTRACE_SAVE_REGISTERS};
static const struct hodo_ftrace_ops modifier = {see, FLAGS | HODO_FTRACE_IP_MODIFY};
static long (*volatile call)(long, long, long, double, long) = work;

QUIET int main(void) {
    CHECK(hodo_ftrace_set_filter(&modifier, "work", 1) == 1);
    CHECK(hodo_ftrace_register(&modifier) == -1);
    CHECK(hodo_ftrace_set_filter(&tracer, "work", 1) == 1);
    CHECK(hodo_ftrace_register(&tracer) == 0);
    CHECK(call(1, 20, 300, 7.5, 5) == 6003 && hits == 1);
    CHECK(hodo_ftrace_unregister(&tracer) == 0);
    CHECK(call(1, 20, 300, 7.5, 5) == 6003 && hits == 1);
    puts("ok");
    return 0;
}
