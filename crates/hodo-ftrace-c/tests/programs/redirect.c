// Tracers that change registers, which is too late where `mcount` is called (FRAMED), and tracers of one thread.
#include "check.h"
#include <pthread.h>
#include <string.h>

APART static long old_version(long a, long b) {
    EFFECT;
    return a - b;
}

APART QUIET static long new_version(long a, long b) {
    EFFECT;
    return a * b;
}

APART static long plain(long a) {
    EFFECT;
    return a + 1;
}

// Compilers do not see what is called.
static long (*volatile call_old)(long, long) = old_version;
static long (*volatile call_plain)(long) = plain;

HOOK static void redirect(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                          struct hodo_ftrace_registers *registers) {
    registers->ip = (unsigned long)ops->data;
}

HOOK static void argument(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                          struct hodo_ftrace_registers *registers) {
#if defined(__x86_64__)
    registers->rdi += 100;
#else
    registers->x[10] += 100;
#endif
}

static _Thread_local int mine;
HOOK static void count(unsigned long ip, unsigned long parent, const struct hodo_ftrace_ops *ops,
                       struct hodo_ftrace_registers *registers) {
    mine++;
}

static const struct hodo_ftrace_ops redirects = {redirect, FLAGS | HODO_FTRACE_IP_MODIFY, (void *)new_version};
static const struct hodo_ftrace_ops changes = {argument, FLAGS | HODO_FTRACE_IP_MODIFY};
static const struct hodo_ftrace_ops by_thread = {count, FLAGS | HODO_FTRACE_PER_THREAD};

QUIET static void *other(void *data) {
    CHECK(call_plain(1) == 2 && mine == 0);
    CHECK(hodo_ftrace_set_thread(&by_thread, 1) == 0);
    CHECK(call_plain(1) == 2 && mine == 1);
    return 0;
}

QUIET int main(void) {
    CHECK(call_old(6, 7) == -1 && call_plain(6) == 7);
    CHECK(hodo_ftrace_set_filter(&redirects, "old_version", 1) == 1);
#ifdef FRAMED
    CHECK(hodo_ftrace_register(&redirects) == -1);
    CHECK(strstr(hodo_ftrace_error(), "old_version cannot be shown to this tracer") != 0);
    CHECK(call_old(6, 7) == -1 && call_plain(6) == 7);
#else
    CHECK(hodo_ftrace_register(&redirects) == 0);
    CHECK(call_old(6, 7) == 42 && call_plain(6) == 7);

    // Only one may change the registers of a function.
    CHECK(hodo_ftrace_register(&changes) == -1);
    CHECK(strstr(hodo_ftrace_error(), "another one changes registers") != 0);
    CHECK(call_old(6, 7) == 42 && call_plain(6) == 7);
    CHECK(hodo_ftrace_set_filter(&changes, "plain", 1) == 1);
    CHECK(hodo_ftrace_register(&changes) == 0);
    CHECK(call_old(6, 7) == 42 && call_plain(6) == 107);
    CHECK(hodo_ftrace_set_filter(&changes, "old_version", 1) == -1);
    CHECK(call_old(6, 7) == 42 && call_plain(6) == 107);
    CHECK(hodo_ftrace_unregister(&changes) == 0);
    CHECK(hodo_ftrace_unregister(&redirects) == 0);
    CHECK(call_old(6, 7) == -1 && call_plain(6) == 7);
#endif

    CHECK(hodo_ftrace_set_thread(&by_thread, 1) == -1);
    CHECK(hodo_ftrace_register(&by_thread) == 0);
    CHECK(call_plain(1) == 2 && mine == 0);
    CHECK(hodo_ftrace_set_thread(&by_thread, 1) == 0);
    CHECK(call_plain(1) == 2 && mine == 1);
    CHECK(hodo_ftrace_set_thread(&by_thread, 0) == 0);
    CHECK(call_plain(1) == 2 && mine == 1);
    pthread_t thread;
    pthread_create(&thread, 0, other, 0);
    pthread_join(thread, 0);
    CHECK(hodo_ftrace_set_thread(&redirects, 1) == -1);
    CHECK(strstr(hodo_ftrace_error(), "HODO_FTRACE_PER_THREAD") != 0);
    puts("ok");
    return 0;
}
