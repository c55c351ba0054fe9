// A function that leaves registers alone, as gcc has seen (-fipa-ra), called while they are in use. With the option
// -fpatchable-function-entry, gcc 12 does not look at that, but it does with the attribute (ROOM).
#include "check.h"
#include <string.h>

#ifdef ROOM
#define SITE APART __attribute__((patchable_function_entry(ROOM)))
#else
#define SITE APART
#endif

// It changes only its argument.
SITE long leaf(long a) {
    EFFECT;
    return a ^ 5;
}

// It has no site, but calls one that has.
APART QUIET long between(long a) {
    long result = leaf(a);
    EFFECT; // This is no tail call.
    return result;
}

SITE static long other(long a) {
    EFFECT;
    return a + 7;
}

static volatile long from[27], to[27];

#define EACH(X)                                                                                \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) \
    X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26)
#define LOAD(n) long v##n = from[n];
#define STORE(n) to[n] = v##n;

#ifdef BETWEEN
#define CALLEE between
#else
#define CALLEE leaf
#endif
APART QUIET static long keeper(long a) {
    EACH(LOAD)
    a = CALLEE(a);
    EACH(STORE)
    return a;
}

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
// Keeps a value in a register, without a compiler.
QUIET static long keeps(long a) {
#if !defined(BY_HAND)
    return 77;
#elif defined(__riscv)
    register long result __asm__("a0") = a;
    long kept;
    __asm__ volatile("li t0, 77\n call " TEXT(CALLEE) "\n addi %1, t0, 0"
                     : "+r"(result), "=r"(kept) : : "ra", "t0", "t1", "memory");
    return kept;
#elif defined(__aarch64__)
    register long result __asm__("x0") = a;
    long kept;
    __asm__ volatile("mov x9, #77\n bl " TEXT(CALLEE) "\n mov %1, x9"
                     : "+r"(result), "=r"(kept) : : "x30", "x9", "x16", "x17", "memory");
    return kept;
#else
    return 77;
#endif
}

static int seen;
HOOK static void see(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                     struct hodo_ftrace_registers *registers) {
    seen++;
}
static const struct hodo_ftrace_ops tracer = {see, FLAGS, 0};

static int leaf_sites, other_sites;
QUIET static int each(const struct hodo_ftrace_site *site, void *data) {
    leaf_sites += strcmp(site->name, "leaf") == 0;
    other_sites += strcmp(site->name, "other") == 0;
    return 0;
}

QUIET static void check(void) {
    memset((void *)to, 0, sizeof to);
    for (int i = 0; i < 27; i++)
        from[i] = 1000 + i;
    CHECK(keeper(8) == 13);
    for (int i = 0; i < 27; i++)
        CHECK(to[i] == 1000 + i);
    CHECK(keeps(3) == 77 && between(8) == 13 && other(8) == 15);
}

QUIET int main(void) {
    check();
    CHECK(hodo_ftrace_each_site(each, 0) == REFUSED);
    CHECK(leaf_sites == 1 - REFUSED && other_sites == 1);
    CHECK(hodo_ftrace_register(&tracer) == 0);
    check();
    CHECK(seen >= 1 + 2 * (1 - REFUSED) && seen <= 1 + 3 * (1 - REFUSED));
    CHECK(hodo_ftrace_unregister(&tracer) == 0);
    check();
    puts("ok");
    return 0;
}
