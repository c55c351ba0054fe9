// Unwinding works at every instruction of the stubs, of the code that they call, and of the program: a trap after each
// instruction looks for all callers.
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
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

// Whether this is an instruction of the program or the library, with what is known of it. The C library is not ours to
// check.
QUIET static int is_ours(size_t pc, Dl_info *where) {
    return dladdr((void *)pc, where) && (strstr(where->dli_fname, "libhodo_ftrace") || strcmp(where->dli_fname, program) == 0);
}

// Linkers do not write frame tables for the table of calls between files (PLT) on AArch64.
QUIET static int is_linkage(size_t pc) {
#ifdef __aarch64__
    const unsigned *entry = (unsigned *)(pc & -16ul);
    return (entry[1] & 0xFFC003FF) == 0xF9400211 && entry[3] == 0xD61F0220;
#else
    return pc == 0;
#endif
}

QUIET static void check_here(size_t pc) {
    Dl_info where;
    if (!stepping || !is_ours(pc, &where) || is_linkage(pc)) return;
    steps++;
    in_library += strcmp(where.dli_fname, program) != 0;
    struct found found = {0, 0, 0};
    _Unwind_Backtrace(frame, &found);
    if (found.main != 1 || (inside && found.outer != 1)) {
        printf("at %s+%#zx (%s): main %d times, outer %d times in %d frames\n", where.dli_fname,
               pc - (size_t)where.dli_fbase, where.dli_sname, found.main, found.outer, found.frames);
        exit(1);
    }
}

#ifdef __aarch64__
// There is no trap flag. Instead, the next instruction is replaced by a breakpoint, or both if this one is a branch.
static unsigned *planted[2], replaced[2];
enum { STEP = 0xD4200000, LAST = 0xD4200020 };

QUIET static void write_code(unsigned *at, unsigned code) {
    size_t page = (size_t)at & -4096ul;
    CHECK(mprotect((void *)page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
    *(volatile unsigned *)at = code;
    __builtin___clear_cache((char *)at, (char *)(at + 1));
}

// What the instruction may continue with: `next[1]` is 0, or the target of a conditional branch.
QUIET static void successors(const ucontext_t *state, size_t pc, size_t next[2]) {
    unsigned code = *(unsigned *)pc;
    next[0] = pc + 4;
    next[1] = 0;
    if ((code & 0x7C000000) == 0x14000000) {
        next[0] = pc + ((int)(code << 6) >> 4);
    } else if ((code & 0xFF9FFC1F) == 0xD61F0000) {
        next[0] = state->uc_mcontext.regs[code >> 5 & 31];
    } else if ((code & 0xFF000010) == 0x54000000 || (code & 0x7E000000) == 0x34000000) {
        next[1] = pc + ((int)(code << 8) >> 13 << 2);
    } else if ((code & 0x7E000000) == 0x36000000) {
        next[1] = pc + ((int)(code << 13) >> 18 << 2);
    }
    // A trap between an exclusive load and its store would make the loop around them endless. Such a loop ends after the
    // branch that follows the store, or where a comparison before it leads.
    if ((*(unsigned *)next[0] & 0x3FC00000) == 0x08400000 && !next[1]) {
        unsigned *at = (unsigned *)next[0];
        for (; (*at & 0x3FC00000) != 0x08000000; at++)
            if ((*at & 0xFF000010) == 0x54000000) next[1] = (size_t)at + ((int)(*at << 8) >> 13 << 2);
        next[0] = (size_t)(at + 2);
        if (next[1] == next[0]) next[1] = 0;
    }
    // What others do is done when they return.
    Dl_info where;
    int calls = code >> 26 == 0x25 || (code & 0xFFFFFC1F) == 0xD63F0000;
    if (!is_ours(next[0], &where)) next[0] = calls ? pc + 4 : state->uc_mcontext.regs[30];
}

QUIET static void trapped(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    ucontext_t *state = context;
    for (int i = 0; i < 2; i++)
        if (planted[i]) write_code(planted[i], replaced[i]);
    size_t pc = state->uc_mcontext.pc;
    int is_planted = pc == (size_t)planted[0] || pc == (size_t)planted[1];
    planted[0] = planted[1] = 0;
    check_here(pc);
    if (!is_planted) pc = state->uc_mcontext.pc += 4;
    size_t next[2] = {pc, 0};
    if (is_planted) successors(state, pc, next);
    for (int i = 0; i < 2; i++) {
        if (!next[i]) continue;
        planted[i] = (unsigned *)next[i];
        replaced[i] = *planted[i];
        // The last instruction traps by itself.
        if (replaced[i] == LAST) planted[i] = 0;
        else write_code(planted[i], STEP);
    }
}

APART QUIET static int stepped(int n) {
    stepping = 1;
    __asm__ volatile("brk #0" ::: "memory");
    n = outer(n);
    __asm__ volatile("brk #1" ::: "memory");
    stepping = 0;
    return n;
}
#else
QUIET static void trapped(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    check_here(((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP]);
}

QUIET static int stepped(int n) {
    stepping = 1;
    __asm__ volatile("sub $128, %%rsp; pushfq; orq $0x100, (%%rsp); popfq; add $128, %%rsp" ::: "memory", "cc");
    n = outer(n);
    __asm__ volatile("sub $128, %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; add $128, %%rsp" ::: "memory", "cc");
    stepping = 0;
    return n;
}
#endif

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
