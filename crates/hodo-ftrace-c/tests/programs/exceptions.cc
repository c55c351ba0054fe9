// C++ exceptions, backtraces and the cancellation of threads pass through functions whose returns are traced.
#include "check.h"
#include <pthread.h>
#include <stdexcept>
#include <unistd.h>
#include <unwind.h>

// Compilers do not see the calls of hooks.
static volatile long entries, exits, destroyed, backtraces;
extern "C" {
QUIET int main();
}

QUIET static _Unwind_Reason_Code frame(_Unwind_Context *context, void *found) {
    if (_Unwind_FindEnclosingFunction((void *)(_Unwind_GetIP(context) - 1)) == (void *)main) *(bool *)found = true;
    return _URC_NO_REASON;
}

// Whether the unwinder gets to `main` from here.
QUIET static bool reaches_main() {
    bool found = false;
    _Unwind_Backtrace(frame, &found);
    backtraces += found;
    return found;
}

static bool must_reach = true;

QUIET static int entered(struct hodo_ftrace_call *) {
    entries++;
    if (must_reach) CHECK(reaches_main());
    return 1;
}

QUIET static void left(struct hodo_ftrace_call *) {
    exits++;
    if (must_reach) CHECK(reaches_main());
}

static const struct hodo_ftrace_graph_ops ops = {entered, left, HODO_FTRACE_VECTORS};

struct Guard {
    QUIET ~Guard() { destroyed++; }
};

APART int throwing(int n) {
    Guard guard;
    if (n == 0) throw std::runtime_error("out");
    return throwing(n - 1) + 1;
}

APART int catching(int n) {
    try {
        return throwing(n);
    } catch (const std::runtime_error &) {
        return -n;
    }
}

APART int rethrowing(int n) {
    try {
        int caught = catching(n);
        return caught + throwing(n);
    } catch (...) {
        throw;
    }
}

APART void waiting(volatile int *started) {
    Guard guard;
    *started = 1;
    for (;;) pause();
}

QUIET static void *thread(void *started) {
    waiting((volatile int *)started);
    return nullptr;
}

int main() {
    hodo_ftrace_set_graph(&ops);
    for (int i = 0; i < 20; i++) CHECK(catching(i) == -i);
    CHECK(destroyed == 210);
    CHECK(entries == 230 && exits == 20);
    try {
        rethrowing(3);
        CHECK(false);
    } catch (const std::exception &) {
    }
    CHECK(destroyed == 218);
    CHECK(backtraces == entries + exits);
    struct hodo_ftrace_counts counts;
    hodo_ftrace_counts(&counts);
    CHECK(counts.lost == 0 && counts.untraced == 0 && counts.missed == 0);

    // A thread's stack does not begin in `main`.
    must_reach = false;
    volatile int started = 0;
    pthread_t other;
    CHECK(pthread_create(&other, nullptr, thread, (void *)&started) == 0);
    while (!started) usleep(100);
    CHECK(pthread_cancel(other) == 0 && pthread_join(other, nullptr) == 0);
    CHECK(destroyed == 219);
    hodo_ftrace_set_graph(nullptr);
    puts("ok");
}
