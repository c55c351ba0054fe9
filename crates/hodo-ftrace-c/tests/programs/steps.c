// Unwinding works at every instruction of the stubs, of the code that they call, and of the program: a trap after each
// instruction looks for all callers.
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include <unwind.h>

static volatile int inside, stepping;
static volatile long hooked, steps, in_library;
static const char *program;

HOOK static void entered(size_t from, size_t self) { hooked++, (void)from, (void)self; }
HOOK static int graph_entered(struct hodo_ftrace_call *call) { return hooked++, (void)call, 1; }
HOOK static void graph_left(struct hodo_ftrace_call *call) { hooked++, (void)call; }

APART int inner(int n) {
    EFFECT;
    return n + 1;
}
APART int outer(int n) {
    inside = 1;
    n = inner(n);
    inside = 0;
    return n * 2;
}

QUIET int main(void);
struct found { int main, outer, frames; };

QUIET static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *argument) {
    struct found *found = argument;
    int before = 0;
    size_t pc = _Unwind_GetIPInfo(context, &before);
    void *function = _Unwind_FindEnclosingFunction((void *)(pc - !before));
    found->main += function == (void *)main;
    found->outer += function == (void *)outer;
    return ++found->frames > 100 ? _URC_END_OF_STACK : _URC_NO_REASON;
}

QUIET static void trapped(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    ucontext_t *state = context;
    size_t pc = state->uc_mcontext.gregs[REG_RIP];
    Dl_info where;
    if (!stepping || !dladdr((void *)pc, &where)) return;
    int library = strstr(where.dli_fname, "libhodo_ftrace") != 0;
    // The C library is not ours to check.
    if (!library && strcmp(where.dli_fname, program) != 0) return;
    steps++;
    in_library += library;
    struct found found = {0, 0, 0};
    _Unwind_Backtrace(frame, &found);
    if (found.main != 1 || (inside && found.outer != 1)) {
        printf("at %s+%#zx (%s): main %d times, outer %d times in %d frames\n", where.dli_fname,
               pc - (size_t)where.dli_fbase, where.dli_sname, found.main, found.outer, found.frames);
        exit(1);
    }
}

QUIET static int stepped(int n) {
    stepping = 1;
    __asm__ volatile("sub $128, %%rsp; pushfq; orq $0x100, (%%rsp); popfq; add $128, %%rsp" ::: "memory", "cc");
    n = outer(n);
    __asm__ volatile("sub $128, %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; add $128, %%rsp" ::: "memory", "cc");
    stepping = 0;
    return n;
}

QUIET int main(void) {
    static const struct hodo_ftrace_entry_ops entry[] = {{entered, 0}, {entered, HODO_FTRACE_VECTORS}};
    static const struct hodo_ftrace_graph_ops graph[] = {{graph_entered, graph_left, 0},
                                                         {graph_entered, graph_left, HODO_FTRACE_VECTORS}};
    Dl_info own;
    CHECK(dladdr((void *)main, &own));
    program = own.dli_fname;
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(SIGTRAP, &action, 0) == 0);
    // Nobody listens.
    CHECK(stepped(1) == 4 && steps > 10 && hooked == 0);
    for (int i = 0; i < 4; i++) {
        hodo_ftrace_set_entry(i & 2 ? &entry[i & 1] : 0);
        hodo_ftrace_set_graph(&graph[i & 1]);
        hooked = 0;
        // The first time, memory is prepared.
        CHECK(stepped(1) == 4);
        CHECK(hooked == (i & 2 ? 6 : 4));
    }
    hodo_ftrace_set_graph(0);
    hodo_ftrace_set_entry(0);
    CHECK(in_library > 500);
    puts("ok");
    return 0;
}
