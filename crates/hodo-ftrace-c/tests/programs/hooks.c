// The hooks get the function and its caller.
#include "check.h"

// Compilers do not see the calls of hooks.
static volatile size_t from[64], self[64], out[64];
static volatile int entries, exits;

HOOK static void entered(size_t caller, size_t function) {
    from[entries % 64] = caller;
    self[entries++ % 64] = function;
}

QUIET static void cyg_entered(size_t function, size_t caller) {
    from[entries % 64] = function;
    self[entries++ % 64] = caller;
}

QUIET static void cyg_left(size_t function, size_t caller) {
    out[exits++ % 64] = function;
    (void)caller;
}

APART double f(int a, double b, long c, double d) {
    EFFECT;
    return a + b * 2 + c * 3 + d * 4;
}
APART double g(int a, double b) {
    double result = f(a, b, 3, 4.5);
    EFFECT;
    return result + 1;
}

// Of a hook: it calls what is instrumented.
APART int helped(int a) { return a + 1; }
static volatile int help;
QUIET static void calling(size_t caller, size_t function) {
    (void)caller, (void)function;
    entries++;
    help = helped(help);
}

#ifdef CYG
static const struct hodo_ftrace_cyg_ops cyg = {cyg_entered, cyg_left}, cyg_calling = {calling, 0};
#else
static const struct hodo_ftrace_entry_ops ops = {entered, FLAGS}, ops_calling = {calling, HODO_FTRACE_VECTORS};
#endif

QUIET int main(void) {
    CHECK(g(1, 2.5) == 34);
#ifdef CYG
    hodo_ftrace_set_cyg(&cyg);
#else
    hodo_ftrace_set_entry(&ops);
#endif
    double x = g(1, 2.5);
    hodo_ftrace_set_entry(0);
    hodo_ftrace_set_cyg(0);
    CHECK(g(1, 2.5) == 34);
    CHECK(x == 34);
    CHECK(entries == 2);
#ifdef CYG
    CHECK(from[0] == (size_t)g && from[1] == (size_t)f && exits == 2 && out[0] == (size_t)f && out[1] == (size_t)g);
    CHECK(self[0] > (size_t)main && self[1] > (size_t)g && self[1] - (size_t)g < 128);
#else
    // selfpc is a call in the function's first bytes, frompc is in its caller.
#ifdef __riscv
    enum { MOST = 64 };
    unsigned short call = *(unsigned short *)self[0];
    CHECK((call & 0x7F) == 0x17 || (call & 0xFFF) == 0xEF || (call & 0xF07F) == 0x9002 ||
          // Switched off.
          (call & 0xFFF) == 0xB7);
#elif defined(__aarch64__)
    enum { MOST = 64 };
    unsigned call = *(unsigned *)self[0];
    // `bl` or `blr`, or switched off.
    CHECK(call >> 26 == 0x25 || call == 0xD503201F || (call & 0xFFFFFC1F) == 0xD63F0000);
#else
    enum { MOST = 32 };
    unsigned char *call = (unsigned char *)self[0];
    CHECK(*call == 0xE8 || *call == 0xA9 || (call[0] == 0xFF && call[1] == 0x15) || (call[0] == 0x67 && call[1] == 0xE8));
#endif
    CHECK(self[0] - (size_t)g < MOST && self[1] - (size_t)f < MOST);
    CHECK(from[0] - (size_t)main < 512 && from[1] - (size_t)g < 128);
#endif

    entries = 0;
#ifdef CYG
    hodo_ftrace_set_cyg(&cyg_calling);
#else
    hodo_ftrace_set_entry(&ops_calling);
#endif
    x = g(1, 2.5);
    hodo_ftrace_set_entry(0);
    hodo_ftrace_set_cyg(0);
    struct hodo_ftrace_counts counts;
    hodo_ftrace_counts(&counts);
    CHECK(x == 34 && entries == 2 && help == 2 && counts.missed == 2);
    puts("ok");
    return 0;
}
